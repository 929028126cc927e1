"""ACLs, SCRAM users and delegation tokens: DescribeAcls, CreateAcls, DeleteAcls,
DescribeUserScramCredentials, AlterUserScramCredentials, and {Create, Renew, Expire,
Describe}DelegationToken."""

from __future__ import annotations

from sparkkafka.protocol.wire.fields import (
    array,
    bytes_,
    int8,
    int16,
    int32,
    int64,
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


@struct
class CreatableRenewers:
    """Who may renew a delegation token beside its owner: User, alice."""

    principal_type: str = string()
    principal_name: str = string()


@struct
class DescribeDelegationTokenOwner(CreatableRenewers):
    """Whose tokens are meant."""


@struct
class DescribedDelegationTokenRenewer(CreatableRenewers):
    """Who may renew a token."""


@request(api_key=38, versions=(1, 3), flexible=2)
class CreateDelegationTokenRequest(Request["CreateDelegationTokenResponse"]):
    """Asks for a delegation token of this user, or of an owner (KIP-48, KIP-373)."""

    owner_principal_type: str | None = nullable_string("", since=3, nullable_since=3)
    owner_principal_name: str | None = nullable_string("", since=3, nullable_since=3)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


@response(CreateDelegationTokenRequest)
class CreateDelegationTokenResponse(Response):
    """The new token. Who has its id and HMAC can log in: its repr does not show the HMAC."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_(secret=True)
    throttle_time_ms: int = int32()


@request(api_key=39, versions=(1, 2), flexible=2)
class RenewDelegationTokenRequest(Request["RenewDelegationTokenResponse"]):
    """Makes a token last longer."""

    hmac: bytes = bytes_(secret=True)
    renew_period_ms: int = int64()


@response(RenewDelegationTokenRequest)
class RenewDelegationTokenResponse(Response):
    """When the token ends now."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@request(api_key=40, versions=(1, 2), flexible=2)
class ExpireDelegationTokenRequest(Request["ExpireDelegationTokenResponse"]):
    """Makes a token end earlier; a negative period: now."""

    hmac: bytes = bytes_(secret=True)
    expiry_time_period_ms: int = int64()


@response(ExpireDelegationTokenRequest)
class ExpireDelegationTokenResponse(Response):
    """When the token ends now."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@request(api_key=41, versions=(1, 3), flexible=2)
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    """Asks for the tokens of owners, or (None) for all that this user may see."""

    owners: list[DescribeDelegationTokenOwner] | None = nullable_array(DescribeDelegationTokenOwner)


@struct
class DescribedDelegationToken:
    """A token. Its repr does not show the HMAC."""

    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_(secret=True)
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@response(DescribeDelegationTokenRequest)
class DescribeDelegationTokenResponse(Response):
    """The tokens."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
