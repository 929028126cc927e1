"""How the fake broker answers about ACLs and SCRAM users.

A fault rule with a topic hits the ACLs of that topic, also those that a filter matches.
"""

from __future__ import annotations

from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AclCreationResult,
    AclDescription,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsResponse,
    CredentialInfo,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
)
from sparkkafka.testing.fake.call import Call, reported_in
from sparkkafka.testing.fake.faults import RESOURCE_TOPIC
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.security.state import Credential, StoredAcl, StoredFilter


def describe_acls(call: Call) -> DescribeAclsResponse:
    """Answer DescribeAcls."""
    response, found = DescribeAclsResponse(error_message=None), []
    with reported_in(response):
        call.check_fault()
        found = call.state.acls.matching(_filter(call.message))
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in found:
        resource = resources.setdefault(
            acl[:3],
            DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    response.resources = list(resources.values())
    return response


def _filter(row: Any) -> StoredFilter:
    """Return the filter of a DescribeAcls or DeleteAcls request."""
    return StoredFilter(
        row.resource_type_filter,
        row.resource_name_filter,
        row.pattern_type_filter,
        row.principal_filter,
        row.host_filter,
        row.operation,
        row.permission_type,
    )


def create_acls(call: Call) -> CreateAclsResponse:
    """Answer CreateAcls."""
    rows = []
    for row in call.message.creations:
        acl = StoredAcl(
            row.resource_type,
            row.resource_name,
            row.resource_pattern_type,
            row.principal,
            row.host,
            row.operation,
            row.permission_type,
        )
        result = AclCreationResult(error_message=None)
        with reported_in(result):
            call.check_fault(_topic_of(acl))
            call.state.acls.create(acl)
            call.check_fault(_topic_of(acl), applied=True)
        rows.append(result)
    return CreateAclsResponse(results=rows)


def _topic_of(acl: StoredAcl) -> str:
    """Return the topic that an ACL is about, "" for other resources: no rule with a topic hits
    them."""
    return acl.resource_name if acl.resource_type == RESOURCE_TOPIC else ""


def delete_acls(call: Call) -> DeleteAclsResponse:
    """Answer DeleteAcls."""
    return DeleteAclsResponse(
        filter_results=[_delete_matching(call, _filter(row)) for row in call.message.filters]
    )


def _delete_matching(call: Call, requested: StoredFilter) -> DeleteAclsFilterResult:
    """Delete the ACLs that match one filter."""
    # A rule without a topic refuses the filter as a whole.
    injected = call.error_of()
    if injected is not None and (call.fault is None or call.fault.topic is None):
        return DeleteAclsFilterResult(error_code=injected.code, error_message=injected.message)
    try:
        found = call.state.acls.matching(requested)
    except Refused as error:
        return DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    rows = []
    for acl in found:
        row = DeleteAclsMatchingAcl(
            error_message=None,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        with reported_in(row):
            call.check_fault(_topic_of(acl))
            call.state.acls.delete(acl)
            call.check_fault(_topic_of(acl), applied=True)
        rows.append(row)
    return DeleteAclsFilterResult(error_message=None, matching_acls=rows)


# --- SCRAM ------------------------------------------------------------------------------------


def describe_user_scram_credentials(call: Call) -> DescribeUserScramCredentialsResponse:
    """Answer DescribeUserScramCredentials."""
    injected = call.error_of()
    if injected is not None:
        return DescribeUserScramCredentialsResponse(
            error_code=injected.code, error_message=injected.message
        )
    rows = []
    for user in [row.name for row in call.message.users or ()] or call.state.scram_users.users:
        result = DescribeUserScramCredentialsResult(user=user, error_message=None)
        with reported_in(result):
            result.credential_infos = [
                CredentialInfo(mechanism=mechanism, iterations=row.iterations)
                for mechanism, row in sorted(call.state.scram_users.of(user).items())
            ]
        rows.append(result)
    return DescribeUserScramCredentialsResponse(error_message=None, results=rows)


def alter_user_scram_credentials(call: Call) -> AlterUserScramCredentialsResponse:
    """Answer AlterUserScramCredentials: the changes of one user are all made, or none."""
    changes: dict[str, list[Any]] = {}
    for row in (*call.message.deletions, *call.message.upsertions):
        changes.setdefault(row.name, []).append(row)
    rows = []
    for user, changes_of_user in changes.items():
        result = AlterUserScramCredentialsResult(user=user, error_message=None)
        with reported_in(result):
            call.check_fault()
            call.check_controller()
            _alter(call, changes_of_user)
            call.check_fault(applied=True)
        rows.append(result)
    return AlterUserScramCredentialsResponse(results=rows)


def _alter(call: Call, changes_of_user: list[Any]) -> None:
    """Set or delete a user's credential. Raises Refused."""
    if len(changes_of_user) > 1:
        raise Refused(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    row, users = changes_of_user[0], call.state.scram_users
    if isinstance(row, ScramCredentialDeletion):
        users.delete(row.name, row.mechanism)
    else:
        credential = Credential(row.iterations, row.salt, row.salted_password)
        users.set(row.name, row.mechanism, credential)
