"""Prepare an AWS account for cluster.yaml: make a bucket, a security group and two instance profiles.

    python docs/cluster/prepare_aws.py --region us-west-2 --bucket my-bolt-store \\
        --ssh-from 203.0.113.7/32

It uses the credentials that boto3 finds (``aws configure``, or the environment), prints what to fill in, and costs
nothing by itself. It can be repeated: a new address is allowed in addition to the old one. ``--remove`` deletes all but
the bucket, which holds your results.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
from collections.abc import Iterator
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

GROUP, HEAD, WORKER = "bolt", "bolt-head", "bolt-worker"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--region", required=True)
    parser.add_argument("--bucket", required=True, help="bucket for the store; its name is unique in all of AWS")
    help_text = "addresses that may open SSH connections, e.g. 203.0.113.7/32"
    parser.add_argument("--ssh-from", metavar="CIDR", type=addresses, help=help_text)
    parser.add_argument("--remove", action="store_true", help="delete all but the bucket")
    given = parser.parse_args()
    try:
        if given.remove:
            remove(given.region)
            print(f"removed; the bucket stays: aws s3 rb --force s3://{given.bucket}")
        elif not given.ssh_from:
            parser.error("--ssh-from is needed")
        else:
            print(prepare(given.region, given.bucket, given.ssh_from))
    except (BotoCoreError, ClientError) as error:
        parser.error(f"AWS refuses: {error}")


def addresses(text: str) -> str:
    """Addresses as AWS writes them. Raises ``ArgumentTypeError`` for invalid ones, and for the whole internet."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; for example 203.0.113.7/32") from None
    if network.prefixlen == 0:
        raise argparse.ArgumentTypeError(f"{network} is the whole world")
    return str(network)


def prepare(region: str, bucket: str, source: str) -> str:
    """Make everything; returns the lines to fill in."""
    make_bucket(region, bucket)
    group = make_group(region, source)
    for name, policy in policies(region, bucket).items():
        make_profile(name, policy)
    return f"in cluster.yaml:\n  region: {region}\n  SecurityGroupIds: [{group}]\n  BOLT_STORE=s3://{bucket}/bolt"


def make_bucket(region: str, bucket: str) -> None:
    """Make a private bucket. AWS refuses a name that another account uses."""
    client = boto3.client("s3", region_name=region)
    place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with ignoring("BucketAlreadyOwnedByYou"):
        client.create_bucket(Bucket=bucket, **place)
    closed = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    client.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=dict.fromkeys(closed, True))


def make_group(region: str, source: str) -> str:
    """Make a group in the default network: all traffic among its members, SSH from ``source``, and nothing else."""
    client = boto3.client("ec2", region_name=region)
    networks = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not networks:
        raise SystemExit(f"{region} has no default network; make one: aws ec2 create-default-vpc --region {region}")
    group = find_group(client)
    if group is None:
        text = "BOLT: SSH from its user, everything among its machines"
        group = client.create_security_group(GroupName=GROUP, Description=text, VpcId=networks[0]["VpcId"])["GroupId"]
    among = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ranges, one = ("Ipv6Ranges", "CidrIpv6") if ":" in source else ("IpRanges", "CidrIp")
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, ranges: [{one: source}]}
    for rule in (among, ssh):
        with ignoring("InvalidPermission.Duplicate"):
            client.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    return str(group)


def find_group(client: Any) -> str | None:
    """Return the id of the group, ``None`` if it does not exist."""
    found = client.describe_security_groups(Filters=[{"Name": "group-name", "Values": [GROUP]}])["SecurityGroups"]
    return found[0]["GroupId"] if found else None


def policies(region: str, bucket: str) -> dict[str, list[dict[str, Any]]]:
    """Return the permissions of the head and of the workers."""
    store = [
        {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": f"arn:aws:s3:::{bucket}"},
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            "Resource": f"arn:aws:s3:::{bucket}/*",
        },
    ]
    machines = [
        {
            "Effect": "Allow",
            "Action": ["ec2:Describe*", "ec2:RunInstances", "ec2:TerminateInstances", "ec2:CreateTags"],
            "Resource": "*",
        },
        {"Effect": "Allow", "Action": "iam:PassRole", "Resource": f"arn:aws:iam::*:role/{WORKER}"},
        {
            "Effect": "Allow",
            "Action": "iam:CreateServiceLinkedRole",  # an account's first spot machine
            "Resource": "*",
            "Condition": {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
        },
        {  # the image's id is in a public parameter
            "Effect": "Allow",
            "Action": "ssm:GetParameters",
            "Resource": f"arn:aws:ssm:{region}::parameter/aws/service/*",
        },
    ]
    return {HEAD: [*store, *machines], WORKER: store}


def make_profile(name: str, statements: list[dict[str, Any]]) -> None:
    """Make an instance profile, and a role of the same name with these permissions."""
    client = boto3.client("iam")
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    with ignoring("EntityAlreadyExists"):
        client.create_role(RoleName=name, AssumeRolePolicyDocument=document([trust]))
    client.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=document(statements))
    with ignoring("EntityAlreadyExists"):
        client.create_instance_profile(InstanceProfileName=name)
    with ignoring("LimitExceeded"):  # a profile holds one role, and has it
        client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def remove(region: str) -> None:
    """Delete the group, the profiles and their roles, as far as they exist."""
    identity, machines = boto3.client("iam"), boto3.client("ec2", region_name=region)
    for name in (HEAD, WORKER):
        for delete in (
            lambda name=name: identity.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name),
            lambda name=name: identity.delete_instance_profile(InstanceProfileName=name),
            lambda name=name: identity.delete_role_policy(RoleName=name, PolicyName=name),
            lambda name=name: identity.delete_role(RoleName=name),
        ):
            with ignoring("NoSuchEntity"):
                delete()
    if (group := find_group(machines)) is not None:
        machines.delete_security_group(GroupId=group)


def document(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@contextlib.contextmanager
def ignoring(code: str) -> Iterator[None]:
    """Ignore this error code of AWS: the account is already as it should be."""
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] != code:
            raise


if __name__ == "__main__":
    main()
