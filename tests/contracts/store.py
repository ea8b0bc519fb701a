"""What every `MeshStore` keeps to: the same tests for Redis and for its in-memory twin."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from spotwise.core.fleet.keeper.kept import InstanceLeave, KeptFleet, KeptInstance, KeptLife, KeptPurchase
from spotwise.core.messages.fleet import Market, Purchase, PurchaseStatus
from spotwise.core.messages.members import DevicePlace, Member, MemberKind, MemberState, Pool, ProcessCores, WorkerLoad
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.messages.reshape import DeviceGroup
from spotwise.core.migration.interruption.arrangement import Arrangement, Disposition
from spotwise.core.planner.plan import Plan, PlannedDeployment, PlannedLeave, PlannedRequest, ReshapeStage
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.mesh.ports.ports import MeshStore
from spotwise.mesh.redis.ledgers import LEDGER_MAX_ENTRIES

RECORD = RequestRecord(
    choice_id="cmpl-1#0",
    epoch=1,
    gateway_id="gateway-1",
    attempt_id=7,
    model="a-model",
    prompt_token_ids=(5, 0, 49_151),
    output_token_ids=(),
    sampling=SamplingParams(temperature=0.5, top_k=40, seed=2**63, logit_bias=((3, -1.5),), logprobs=0),
    stop=StopCriteria(max_new_tokens=9, stop_token_ids=(2, 4), min_new_tokens=1),
    arrival_unix_s=1_700_000_000.125,
    priority=-3,
    tenant="acme",
)
MEMBER = Member(
    id="token-1",
    kind=MemberKind.TOKEN_WORKER,
    incarnation=1_700_000_000_000,
    state=MemberState.READY,
    host="a-host",
    pid=42,
    grpc_address="127.0.0.1:50051",
    pool=Pool.MIXED,
    transfer_address="127.0.0.1:50052",
    model="a-model",
    place=DevicePlace(3, 1, 2, 0, 1, (0, 30), (2, 4), "TCP"),
    cores=ProcessCores((0, 1), "0-3,8", 4, is_pinned=True),
)
PLAIN = Member("gateway-1", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 43, "127.0.0.1:50053")
LONG_S = 60.0
FLEET = KeptFleet(
    1_700_000_000_000,
    term=3,
    number=4,
    settled=0.1,
    instances=(
        KeptInstance(
            "i-1",
            "small",
            Market.SPOT,
            "a",
            "t1",
            1.5,
            2.5,
            3.5,
            was_ready=True,
            leave=InstanceLeave("e", 9.5, "reclaimed", is_reclaim=True),
            gone_s=8.25,
        ),
    ),
    lives=(KeptLife("small", "a", 100.5, True, 0.25),),
    purchases=(KeptPurchase(PurchaseStatus(Purchase("t1", ("small",), Market.SPOT, 2), 1.0, True, 1, "1 of 2")),),
)
PLAN = Plan(
    7,
    3,
    2,
    (
        PlannedLeave(
            "token-1",
            9,
            1000.5,
            (
                PlannedRequest(Arrangement("cmpl-1@1", Disposition.MOVE, 4, 998.0, 998.5, 999.0, 0.25), "token-2"),
                PlannedRequest(Arrangement("cmpl-2@1", Disposition.RECOMPUTE, 0, 999.5)),
            ),
        ),
    ),
    PlannedDeployment(
        3,
        "1,2,1",
        ReshapeStage.MOVING,
        (DeviceGroup("mixed-c3-0", Pool.MIXED, 2, 1, ("d0", "d1")),),
        ("mixed-c3-0",),
        (DeviceGroup("token-1", Pool.TOKEN, 1, 2, ("d0", "d1")),),
        990.0,
        1050.0,
        moved=3,
    ),
)


def entry(choice_id: str, at_s: float, stage: str = "assigned", **facts: str | int | float) -> LedgerEntry:
    """A ledger entry of epoch 1 by one member."""
    return LedgerEntry(choice_id, 1, stage, "member", at_s, tuple(facts.items()))


class StoreContract:
    """Subclasses have a fixture `store`: empty, closed when the test ends."""

    async def test_a_record_comes_back_whole(self, store: MeshStore) -> None:
        """Every field; another request's record is another one."""
        await store.put_record(RECORD)
        assert await store.get_record(RECORD.choice_id) == RECORD
        assert await store.get_record("cmpl-1#1") is None

    async def test_a_newer_attempt_replaces_the_older(self, store: MeshStore) -> None:
        newer = replace(RECORD, epoch=2, attempt_id=8, output_token_ids=(11, 12))
        await store.put_record(RECORD)
        await store.put_record(newer)
        assert await store.get_record(RECORD.choice_id) == newer

    async def test_a_burst_waits_its_turn(self, store: MeshStore) -> None:
        """More calls at once than a server's connections would be opened for: all are done, none is refused."""
        burst = [replace(RECORD, choice_id=f"cmpl-{number}#0", attempt_id=number) for number in range(500)]
        await asyncio.gather(*(store.put_record(record) for record in burst))
        assert await asyncio.gather(*(store.get_record(record.choice_id) for record in burst)) == burst

    async def test_a_deleted_record_is_gone(self, store: MeshStore) -> None:
        """Deleting it again, or what never was, changes nothing."""
        await store.put_record(RECORD)
        for _ in range(2):
            await store.delete_record(RECORD.choice_id)
            assert await store.get_record(RECORD.choice_id) is None

    async def test_the_choices_of_a_request_share_a_ledger_in_order_of_time(self, store: MeshStore) -> None:
        """All choices of a request share one ledger, in order of time, whichever choice reads it; facts keep their types."""
        late = entry("cmpl-1#1", 3.0, "decoded", tokens=12, decode_s=0.25, finish_reason="stop")
        first, second = entry("cmpl-1#0", 1.0), entry("cmpl-1#1", 2.0, "prefilled", queue_s=1e-6)
        await store.append_ledger(late, first)
        await store.append_ledger(second)
        for choice_id in ("cmpl-1", "cmpl-1#0", "cmpl-1#5"):
            assert await store.get_ledger(choice_id) == [first, second, late]

    async def test_entries_about_several_requests_are_kept_apart(self, store: MeshStore) -> None:
        await store.append_ledger(entry("a", 1.0), entry("b", 2.0), entry("a", 3.0))
        await store.append_ledger()
        assert [each.at_s for each in await store.get_ledger("a")] == [1.0, 3.0]
        assert [each.at_s for each in await store.get_ledger("b")] == [2.0]
        assert await store.get_ledger("c") == []

    async def test_entries_at_one_time_stay_in_the_order_of_writing(self, store: MeshStore) -> None:
        written = [entry("a", 1.0, stage) for stage in ("assigned", "prefilled", "decoded")]
        await store.append_ledger(*written)
        assert await store.get_ledger("a") == written

    async def test_of_a_ledger_without_end_the_newest_entries_are_kept(self, store: MeshStore) -> None:
        """A request that is tried for ever does not fill the store."""
        await store.append_ledger(*(entry("a", float(number)) for number in range(LEDGER_MAX_ENTRIES + 10)))
        times = [each.at_s for each in await store.get_ledger("a")]
        assert times == [float(number) for number in range(10, LEDGER_MAX_ENTRIES + 10)]

    async def test_members_are_found_by_their_ids(self, store: MeshStore) -> None:
        """In the order of the question; those that are not registered are left out."""
        for member in (PLAIN, MEMBER, replace(MEMBER, id="token-2")):
            await store.register(member, 10.0)
        ids = ["token-2", "unknown", PLAIN.id]
        assert await store.registered(ids) == [replace(MEMBER, id="token-2", load=None), PLAIN]
        assert await store.registered([]) == []

    async def test_members_come_in_order_of_id_and_without_load(self, store: MeshStore) -> None:
        await store.register(replace(MEMBER, id="token-2", load=WorkerLoad(running=3)), LONG_S)
        await store.register(MEMBER, LONG_S)
        await store.register(PLAIN, LONG_S)
        assert await store.members() == [PLAIN, MEMBER, replace(MEMBER, id="token-2")]

    async def test_a_registration_replaces_the_one_before(self, store: MeshStore) -> None:
        await store.register(replace(MEMBER, state=MemberState.STARTING), LONG_S)
        await store.register(MEMBER, LONG_S)
        assert await store.members() == [MEMBER]

    async def test_who_unregisters_is_gone(self, store: MeshStore) -> None:
        """Others stay; a second time changes nothing."""
        await store.register(MEMBER, LONG_S)
        await store.register(PLAIN, LONG_S)
        for _ in range(2):
            await store.unregister(MEMBER.id)
            assert await store.members() == [PLAIN]

    async def test_a_registration_ends_by_itself_unless_renewed(self, store: MeshStore) -> None:
        """The silent one is gone after its time; the one that was renewed for longer is not."""
        await store.register(MEMBER, 0.05)
        await store.register(PLAIN, 0.05)
        await store.register(PLAIN, LONG_S)
        await asyncio.sleep(0.1)
        assert await store.members() == [PLAIN]

    async def test_a_clock_that_was_set_back_gives_no_lower_incarnation(self, store: MeshStore) -> None:
        """A new incarnation is above every one registered or given out under the id, also after the member left.

        Else it is the clock's.
        """
        assert await store.next_incarnation("w", 1_700_000_000_000) == 1_700_000_000_000
        assert await store.next_incarnation("w", 1_600_000_000_000) == 1_700_000_000_001
        await store.register(replace(MEMBER, id="w", incarnation=1_800_000_000_000), ttl_s=LONG_S)
        await store.unregister("w")
        assert await store.next_incarnation("w", 1_700_000_000_002) == 1_800_000_000_001
        assert await store.next_incarnation("w", 1_900_000_000_000) == 1_900_000_000_000
        assert await store.next_incarnation("other", 5) == 5

    async def test_closing_twice_is_closing(self, store: MeshStore) -> None:
        await store.close()
        await store.close()

    async def test_one_process_of_a_service_at_a_time_holds_the_term(self, store: MeshStore) -> None:
        """The same one extends it; the next holder's term is higher, also where the store begins anew."""
        assert await store.hold_term("s", "a/1", 100, LONG_S) == 100
        assert await store.hold_term("s", "b/1", 200, LONG_S) is None
        assert await store.hold_term("s", "a/1", 300, LONG_S) == 100
        await store.end_term("s", "b/1")  # not its own
        assert await store.hold_term("s", "b/1", 200, LONG_S) is None
        await store.end_term("s", "a/1")
        await store.end_term("s", "a/1")
        assert await store.hold_term("s", "b/1", 50, LONG_S) == 101
        await store.end_term("s", "b/1")
        assert await store.hold_term("s", "a/1", 500, LONG_S) == 500

    async def test_services_have_terms_of_their_own(self, store: MeshStore) -> None:
        assert await store.hold_term("s", "a/1", 100, LONG_S) == 100
        assert await store.hold_term("other", "b/1", 7, LONG_S) == 7
        await store.end_term("other", "a/1")
        assert await store.hold_term("s", "b/1", 200, LONG_S) is None

    async def test_a_lease_that_is_not_extended_ends(self, store: MeshStore) -> None:
        """A process that died holds up no other. One that stood still, and that no other replaced, goes on in its term."""
        assert await store.hold_term("s", "a/1", 1, 0.05) == 1
        await asyncio.sleep(0.1)
        assert await store.hold_term("s", "b/1", 1, 0.05) == 2
        await asyncio.sleep(0.1)
        assert await store.hold_term("s", "b/1", 1, LONG_S) == 2
        await store.end_term("s", "b/1")
        assert await store.hold_term("s", "b/1", 1, LONG_S) == 3  # it gave the term back

    async def test_a_process_takes_the_lease_from_its_predecessor(self, store: MeshStore) -> None:
        """A process that is started again waits for no lease of the one that died; the dead one's id does not get it back."""
        assert await store.hold_term("s", "a/9", 1, LONG_S) == 1
        assert await store.hold_term("s", "a/10", 1, LONG_S) == 2
        assert await store.hold_term("s", "a/9", 1, LONG_S) is None
        assert await store.hold_term("s", "aa/11", 1, LONG_S) is None
        assert await store.hold_term("s", "a/10", 1, LONG_S) == 2

    async def test_the_first_claim_of_numerics_is_every_workers(self, store: MeshStore) -> None:
        """Each model has its own; who computes so renews it, and who does not extends nothing."""
        assert await store.claim_numerics("m", "bfloat16/dot", LONG_S) == "bfloat16/dot"
        assert await store.claim_numerics("m", "float32/fma", LONG_S) == "bfloat16/dot"
        assert await store.claim_numerics("m", "bfloat16/dot", LONG_S) == "bfloat16/dot"
        assert await store.claim_numerics("other", "float32/fma", LONG_S) == "float32/fma"

    async def test_a_claim_ends_with_the_workers_that_have_it(self, store: MeshStore) -> None:
        """A mesh that is gone binds no later one; a worker of another class takes its place, and keeps it."""
        assert await store.claim_numerics("m", "bfloat16/dot", 0.3) == "bfloat16/dot"
        await asyncio.sleep(0.2)
        assert await store.claim_numerics("m", "bfloat16/dot", 0.3) == "bfloat16/dot"
        await asyncio.sleep(0.2)
        assert await store.claim_numerics("m", "float32/fma", LONG_S) == "bfloat16/dot"
        await asyncio.sleep(0.3)
        assert await store.claim_numerics("m", "float32/fma", LONG_S) == "float32/fma"
        assert await store.claim_numerics("m", "bfloat16/dot", LONG_S) == "float32/fma"

    async def test_only_the_holder_writes_plans(self, store: MeshStore) -> None:
        """A plan comes back whole; one of a planner that was replaced is refused."""
        assert await store.get_plan() is None
        assert not await store.put_plan("a/1", PLAN)
        await store.hold_term("planner", "a/1", 1, LONG_S)
        assert await store.put_plan("a/1", PLAN)
        assert await store.get_plan() == PLAN
        await store.end_term("planner", "a/1")
        await store.hold_term("planner", "b/1", 1, LONG_S)
        assert not await store.put_plan("a/1", replace(PLAN, version=3))
        assert await store.get_plan() == PLAN

    async def test_only_the_newest_keeper_writes_a_fleets_record(self, store: MeshStore) -> None:
        """It comes back whole; an earlier keeper's is refused; meshes have records of their own."""
        assert await store.get_fleet("a") is None
        assert await store.put_fleet("a", FLEET)
        assert await store.put_fleet("a", FLEET)
        assert await store.get_fleet("a") == FLEET
        assert await store.put_fleet("a", replace(FLEET, incarnation=FLEET.incarnation + 1))
        assert not await store.put_fleet("a", replace(FLEET, term=9))
        read = await store.get_fleet("a")
        assert read is not None and (read.incarnation, read.term) == (FLEET.incarnation + 1, FLEET.term)
        assert await store.get_fleet("b") is None
