"""ACLs and SCRAM users: DescribeAcls, CreateAcls, DeleteAcls, DescribeUserScramCredentials,
AlterUserScramCredentials."""

from __future__ import annotations

from sparkkafka.protocol.wire.fields import (
    array,
    bytes_,
    int8,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
    struct,
)
from sparkkafka.protocol.wire.schema import Request, Response, request, response

_LITERAL = 3


@struct
class DeleteAclsFilter:
    """Which ACLs are meant: 1 is any type, None any text."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = nullable_string()
    pattern_type_filter: int = int8(_LITERAL, since=1)
    principal_filter: str | None = nullable_string()
    host_filter: str | None = nullable_string()
    operation: int = int8()
    permission_type: int = int8()


@request(api_key=29, versions=(1, 3), flexible=2)
class DescribeAclsRequest(DeleteAclsFilter, Request["DescribeAclsResponse"]):
    """Asks for the ACLs that a filter matches."""


@struct
class AclDescription:
    """Who may, or may not, do what."""

    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsResource:
    """A resource and its ACLs."""

    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(_LITERAL, since=1)
    acls: list[AclDescription] = array(AclDescription)


@response(DescribeAclsRequest)
class DescribeAclsResponse(Response):
    """ACLs by resource."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


@struct
class AclCreation:
    """An ACL to create."""

    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(_LITERAL, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@request(api_key=30, versions=(1, 3), flexible=2)
class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Creates ACLs; one that is there already is created once more, which changes nothing."""

    creations: list[AclCreation] = array(AclCreation)


@struct
class AclCreationResult:
    """What became of the ACL at this place of the request."""

    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(CreateAclsRequest)
class CreateAclsResponse(Response):
    """What became of each ACL, in the request's order."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


@request(api_key=31, versions=(1, 3), flexible=2)
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Deletes all ACLs that a filter matches."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@struct
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was deleted."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(_LITERAL, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DeleteAclsFilterResult:
    """What became of the filter at this place of the request."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@response(DeleteAclsRequest)
class DeleteAclsResponse(Response):
    """What became of each filter, in the request's order."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


@struct
class UserName:
    """A user whose credentials are asked for."""

    name: str = string()


@request(api_key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """Asks which SCRAM passwords users have; None means all users (KIP-554, Kafka 2.7)."""

    users: list[UserName] | None = nullable_array(UserName)


@struct
class CredentialInfo:
    """A password's mechanism (1 SCRAM-SHA-256, 2 SCRAM-SHA-512) and iterations."""

    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    """One user's passwords, of which nothing else is told."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@response(DescribeUserScramCredentialsRequest)
class DescribeUserScramCredentialsResponse(Response):
    """Passwords by user."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


@struct
class ScramCredentialDeletion:
    """A password to delete."""

    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    """A password to set, salted: who has it can log in. Its repr shows neither it nor the salt."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_(secret=True)
    salted_password: bytes = bytes_(secret=True)


@request(api_key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    """Sets and deletes SCRAM passwords; goes to the controller (KIP-554, Kafka 2.7)."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    """What became of all changes of one user."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(AlterUserScramCredentialsRequest)
class AlterUserScramCredentialsResponse(Response):
    """What became of each user."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
