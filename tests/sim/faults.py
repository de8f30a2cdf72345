"""
Faults drawn from the seed, and the end of all faults.

Rule: together the faults do no more harm than one failure at a time may do. At most a minority of the replicas has
lost its disk and not caught up; all other faults (crashes of all, pauses, partitions) may come together. After `heal`
nothing is broken any more.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_raft import NotLeader, ProposalRefused
from orderlymq_raft.types import NodeId
from tests.sim.broker.disk import StoreRotten
from tests.sim.clients.accounts import ACCOUNTS
from tests.sim.clients.consumer import LEASE_MS
from tests.sim.clients.zombie import Zombie
from tests.sim.members import MemberChanges
from tests.sim.network import Weather
from tests.sim.olderterm import OlderTerm
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker.nameservers import NameServer
    from tests.sim.broker.replica import Replica
    from tests.sim.clients.consumer import Consumer
    from tests.sim.clients.transactions import Dealer
    from tests.sim.world import World


# How long some faults wait for a broker group that serves no client: a restart, an election and a little work.
PATIENCE_US: Final = 3 * SECOND
PATIENCE_STEP_US: Final = 100 * MS
# The largest error of a wrong clock. Two replicas' clocks agree within a minute only by a rare chance.
WRONG_MS: Final = (1_200_000, 10_000_000, 300_000_000)


class Faults:
    """Draws faults while the safety phase lasts."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = world.timeline.random
        self._over = False
        self.members: MemberChanges = MemberChanges(world)
        self._patience_us = 0
        self._acknowledged = 0
        self._troubles = {
            name: ({**TROUBLES, **RARE_TROUBLES})[name] for name in world.plan.troubles
        }

    def start(self) -> None:
        """Plan the first fault; links that the plan makes slow are slow from the beginning to the end."""
        if self._world.plan.links:
            self.links()
        if self._troubles:
            self._later()

    def heal(self) -> None:
        """End all faults: the network is whole, disks work, all processes run."""
        self._over = True
        world = self._world
        if "transfer" in world.plan.troubles and self._random.random() < 0.3:
            self.failed_transfer()
        world.network.heal()
        for replica in world.replicas.values():
            self._heal_replica(replica)
        for server in world.name_servers:
            if not server.alive:
                server.start()
        for dealer in world.dealers:
            if not dealer.alive:
                dealer.start()
        world.administrator.heal()
        for consumer in world.consumers:
            consumer.paused_until = min(consumer.paused_until, world.timeline.now)
            if not consumer.alive:
                consumer.start()

    def _heal_replica(self, replica: "Replica") -> None:
        world = self._world
        replica.wrong_ms = 0
        replica.disk.slow_max_us = 0
        replica.disk.full = False
        replica.disk.fail_next = False
        replica.store.unreadable = False
        replica.paused_until = min(replica.paused_until, world.timeline.now)
        if not replica.alive and replica.id in world.removed:
            return
        try:
            replica.store.check_all()
        except StoreRotten:
            # No process has read the damaged value yet; this one does now, before another replica is damaged.
            if not replica.alive:
                replica.start()
            if replica.alive:
                replica.crash(wipe=True)
        if not replica.alive and replica.id not in world.removed:
            replica.start()

    def _later(self) -> None:
        mean = self._world.plan.every_us
        self._world.timeline.after(
            int(self._random.expovariate(1 / mean)) + 50 * MS, "fault", self._strike
        )

    def _strike(self) -> None:
        if self._over:
            return
        acknowledged = self._world.laws.acknowledgements
        if self._patience_us > 0 and acknowledged == self._acknowledged:
            # A fault in a broker group that serves no client breaks little that is not broken already.
            self._patience_us -= PATIENCE_STEP_US
            self._world.timeline.after(PATIENCE_STEP_US, "fault", self._strike)
            return
        self._acknowledged = acknowledged
        if not self._world.plan.ruthless:
            self._patience_us = self._random.choice((0, PATIENCE_US))
        name = self._random.choice(sorted(self._troubles))
        self._world.timeline.note(f"fault: {name}")
        self._troubles[name](self)
        self._later()

    # -- whom it hits

    def _replica(self) -> "Replica | None":
        """Return a living replica, the leader more often than its share."""
        alive = [each for each in self._world.replicas.values() if each.alive]
        leaders = [each for each in alive if each.loop.serving]
        if leaders and self._random.random() < 0.5:
            return self._random.choice(leaders)
        return self._random.choice(alive) if alive else None

    def leader(self) -> "Replica | None":
        leaders = [
            each for each in self._world.replicas.values() if each.alive and each.loop.serving
        ]
        return max(leaders, key=lambda each: each.node.term) if leaders else None

    def _consumer(self) -> "Consumer | None":
        alive = [each for each in self._world.consumers if each.alive and not each.paused]
        return self._random.choice(alive) if alive else None

    def _until(self, low_us: int, high_us: int, name: str, call: Callable[[], None]) -> None:
        """End a fault later, unless all faults have been healed by then."""
        self._world.timeline.after(self._random.randrange(low_us, high_us), name, call)

    # -- replicas

    def crash(self) -> None:
        """A process or its machine dies and is restarted."""
        replica = self._replica()
        if replica is not None:
            replica.crash(silent=self._random.random() < 0.5)
            self._world.restart_later(replica)

    def crash_all(self) -> None:
        """All processes end at the same time: by a power failure, or in a way that their machines report."""
        silent = self._random.random() < 0.5
        for replica in list(self._world.replicas.values()):
            if replica.alive:
                replica.crash(silent=silent)
                self._world.restart_later(replica)
        self._world.coverage["all crashed at once"] += 1

    def wipe(self) -> None:
        """A disk is lost, unless another replica still lacks data that it had."""
        world = self._world
        replica = self._replica()
        if replica is None or any(each.is_recovering for each in world.replicas.values()):
            return
        if len(world.members) < 3:
            return
        world.coverage["disk wiped"] += 1
        replica.crash(wipe=True, silent=self._random.random() < 0.5)
        world.restart_later(replica)

    def pause(self) -> None:
        """A broker pauses, sometimes longer than any lease."""
        replica = self._replica()
        if replica is not None:
            world = self._world
            replica.paused_until = world.timeline.now + self._random.choice(
                (100 * MS, 150 * MS, 400 * MS, SECOND, 4 * SECOND)
            )
            world.coverage["broker paused"] += 1

    def transfer(self) -> None:
        """Leadership is handed over as planned."""
        leader = self.leader()
        if leader is None or leader.paused:
            return
        others = sorted(NodeId(each) for each in self._world.replicas if each != leader.id)
        target = self._random.choice(others)
        if self._random.random() < 0.3:
            # Without holding back requests: as a replica does that only speaks raft.
            try:
                leader.loop.transfer(target)
            except (NotLeader, ProposalRefused):
                return
        else:
            leader.move_leadership(target)
        self._world.coverage["leadership transferred"] += 1

    def failed_transfer(self) -> None:
        """A leader hands leadership to a replica that dies before it learns of it."""
        leader = self.leader()
        if leader is None or leader.paused:
            return
        others = [
            each for each in self._world.replicas.values() if each is not leader and each.alive
        ]
        if not others:
            return
        target = self._random.choice(others)
        try:
            leader.loop.transfer(target.id)
        except (NotLeader, ProposalRefused):
            return
        self._world.coverage["successor died before it knew"] += 1
        target.crash(silent=self._random.random() < 0.5)
        self._world.restart_later(target)

    def any_membership(self) -> None:
        """Any member is added or removed; sometimes by a leader that is cut off, and then by its successor, too."""
        leader = self.leader()
        if leader is None or leader.paused:
            return
        if self._random.random() < 0.4:
            cut = self._cut_off(leader)
            self._until(SECOND, 2 * SECOND, "members", partial(self._change_again, leader))
            self._until(2 * SECOND, 3 * SECOND, "island ends", partial(self._reconnect, cut))
        self.members.any(leader)

    def _change_again(self, deposed: "Replica") -> None:
        successor = self.leader()
        if successor is not None and successor is not deposed and not self._over:
            self._world.coverage["members: changed by a successor, too"] += 1
            self.members.any(successor)

    # -- disks

    def slow_disk(self) -> None:
        """A disk is slow."""
        replica = self._replica()
        if replica is not None:
            replica.disk.slow_max_us = self._random.choice((20 * MS, 150 * MS, 600 * MS))
            disk = replica.disk
            self._until(SECOND, 4 * SECOND, "disk fast", lambda: setattr(disk, "slow_max_us", 0))

    def slow_followers(self) -> None:
        """All replicas but the leader write so slowly that sends are retried meanwhile."""
        leader = self.leader()
        for replica in self._world.replicas.values():
            if replica is leader:
                continue
            disk = replica.disk
            disk.slow_max_us = 1_500 * MS
            self._until(SECOND, 3 * SECOND, "disk fast", partial(setattr, disk, "slow_max_us", 0))

    def full_disk(self) -> None:
        """A disk has no space for some time."""
        replica = self._replica()
        if replica is not None:
            replica.disk.full = True
            disk = replica.disk
            self._until(SECOND // 2, 3 * SECOND, "disk space", lambda: setattr(disk, "full", False))

    def failing_disk(self) -> None:
        """A write fails, and the process cannot know whether the disk holds it."""
        replica = self._replica()
        if replica is not None:
            replica.disk.fail_next = True

    def unreadable_disk(self) -> None:
        """Reads fail until the process is restarted."""
        replica = self._replica()
        if replica is not None:
            replica.store.unreadable = True

    def rot(self) -> None:
        """Bits of some values flip; at most a minority has to be rebuilt at a time."""
        replica, world = self._replica(), self._world
        if replica is None or len(world.members) < 3:
            return
        if any(each.is_recovering for each in world.replicas.values()):
            return
        for _ in range(self._random.choice((1, 5, 20))):
            world.coverage["byte rotted"] += replica.store.rot(self._random)

    # -- network

    def wrong_clock(self) -> None:
        """Set one machine's time of day wrong, or sometimes right again."""
        wrong = [each for each in self._world.replicas.values() if each.wrong_ms]
        chosen = self._replica()
        if wrong:
            if self._random.random() < 0.3:
                wrong[0].wrong_ms = 0
        elif chosen is not None:
            longest_ms = self._random.choice(WRONG_MS)
            wrong_ms = self._random.randrange(longest_ms // 2, longest_ms)
            chosen.wrong_ms = self._random.choice((-1, 1)) * wrong_ms
            self._world.coverage["wrong clock"] += 1

    def weather(self) -> None:
        """For some time messages are lost, repeated and delayed."""
        random, network = self._random, self._world.network
        network.weather = Weather(
            loss=random.choice((0.0, 0.02, 0.2)),
            repeat=random.choice((0.0, 0.1)),
            slow=random.choice((0.0, 0.1, 0.5)),
        )
        calm = network.weather

        def clear() -> None:
            if network.weather is calm:
                network.weather = Weather()

        self._until(SECOND, 4 * SECOND, "weather clears", clear)

    def partition(self) -> None:
        """A replica is cut off from all or some others, in both directions or one."""
        random, world = self._random, self._world
        network = world.network
        names = [each.name for each in world.replicas.values()]
        victim = self._replica()
        if victim is None:
            return
        peers = [name for name in names if name != victim.name]
        if random.random() < 0.4:
            peers = random.sample(peers, 1)
            world.coverage["partial partition"] += 1
        groups = (world.producers, world.dealers, world.consumers, world.auditors)
        outside = [each.name for group in groups for each in group]
        outside += [each.name for each in world.name_servers]
        if random.random() < 0.5:
            peers += [name for name in outside if random.random() < 0.7]
        direction = random.choice(("both", "in", "out"))
        cut = set()
        for peer in peers:
            if direction in ("both", "in"):
                cut.add((peer, victim.name))
            if direction in ("both", "out"):
                cut.add((victim.name, peer))
        if direction != "both":
            world.coverage["one-way partition"] += 1
        network.blocked |= cut
        self._until(SECOND // 2, 5 * SECOND, "partition ends", partial(self._reconnect, cut))

    def island(self) -> None:
        """The leader is cut off from its peers only, and sometimes pauses until it has a successor."""
        world, leader = self._world, self.leader()
        if leader is None or leader.paused:
            return
        cut = self._cut_off(leader)
        world.coverage["leader on an island"] += 1
        if self._random.random() < 0.5:
            leader.paused_until = world.timeline.now + self._random.randrange(SECOND, 2 * SECOND)
        self._until(2 * SECOND, 3 * SECOND, "island ends", partial(self._reconnect, cut))

    def coup(self) -> None:
        """A leader is cut off and paused; a replica that votes it out loses its disk and meets it again.

        By then the successor is the one that is cut off, so that no replica is left that could distinguish the two.
        """
        world, leader = self._world, self.leader()
        if leader is None or leader.paused or len(world.members) < 3:
            return
        length = self._random.randrange(1_200 * MS, 2 * SECOND)
        leader.paused_until = world.timeline.now + length
        cut = self._cut_off(leader)

        def meet_again() -> None:
            self._reconnect(cut)
            if not self._over and leader.alive:
                self._lose_witness(leader)

        world.timeline.after(length - 300 * MS, "coup", meet_again)

    def _lose_witness(self, deposed: "Replica") -> None:
        world, successor = self._world, self.leader()
        others = [each for each in world.replicas.values() if each not in (deposed, successor)]
        witnesses = [each for each in others if each.alive and not each.paused]
        if successor is None or successor is deposed or not witnesses:
            return
        if any(each.is_recovering for each in world.replicas.values()):
            return
        cut = self._cut_off(successor)
        witness = self._random.choice(witnesses)
        witness.crash(wipe=True)
        world.restart_after(200 * MS, witness)
        self._until(2 * SECOND, 3 * SECOND, "coup ends", partial(self._reconnect, cut))

    def _reconnect(self, cut: set[tuple[str, str]]) -> None:
        self._world.network.blocked.difference_update(cut)

    def _cut_off(self, replica: "Replica") -> set[tuple[str, str]]:
        """Cut a replica off from its peers only; return the blocked directions."""
        peers = [each.name for each in self._world.replicas.values() if each is not replica]
        cut = {(peer, replica.name) for peer in peers} | {(replica.name, peer) for peer in peers}
        self._world.network.blocked |= cut
        return cut

    def older_term(self) -> None:
        """Entries of an earlier term reach a majority, and a successor that lacks them truncates them."""
        leader = self.leader()
        if leader is not None:
            OlderTerm(self._world, leader, lambda: self._over).begin()

    def links(self) -> None:
        """Draw the delays between replicas again."""
        world = self._world
        world.network.stretch([each.name for each in world.replicas.values()], world.plan.links)
        world.coverage["slow link between replicas"] += 1

    # -- consumers

    def consumer_crash(self) -> None:
        """A consumer dies; sometimes its death can be proven."""
        consumer, world = self._consumer(), self._world
        if consumer is None:
            return
        client_id = consumer.client_id
        consumer.crash()
        world.coverage["consumer crashed"] += 1
        if self._random.random() < 0.5:
            ext = {"clientId": client_id, "proof": "the process is gone"}

            def report() -> None:
                leader = self.leader()
                if leader is not None and not leader.paused:
                    command = request(RequestCode.ORDERLYMQ_CLIENT_DEAD, ext)
                    world.tool.call(command, SECOND, lambda _: None)

            world.timeline.after(20 * MS, "death reported", report)
        self._until(SECOND, 5 * SECOND, "consumer again", lambda: self._again(consumer))

    def consumer_close(self) -> None:
        """A consumer closes normally and comes back."""
        consumer = self._consumer()
        if consumer is not None:
            consumer.close()
            self._until(3 * SECOND, 8 * SECOND, "consumer again", lambda: self._again(consumer))

    def consumer_pause(self) -> None:
        """A consumer pauses, sometimes longer than its lease, and then continues."""
        consumer = self._consumer()
        if consumer is None:
            return
        length = self._random.choice((SECOND, 2 * LEASE_MS * MS, 3 * LEASE_MS * MS))
        consumer.paused_until = self._world.timeline.now + length
        if length > LEASE_MS * MS:
            self._world.coverage["consumer paused beyond its lease"] += 1

    def consumer_hangs_up(self) -> None:
        """A consumer's connection breaks, and it makes another."""
        consumer = self._consumer()
        if consumer is not None and consumer.link is not None:
            consumer.link_lost(consumer.link)

    def zombie(self) -> None:
        """A consumer is replaced but continues without checking its lease."""
        consumer, world = self._consumer(), self._world
        if consumer is None:
            return
        held = sorted(
            (queue, state.epoch)
            for queue, state in consumer.core.queues.items()
            if state.holds(consumer.now_ms())
        )
        if not held:
            return
        queue, epoch = held[0]
        zombie = Zombie(
            world,
            consumer.client_id,
            consumer.group,
            queue,
            None if consumer.plain else epoch,
            plain=consumer.plain,
            account=consumer.account,
        )
        world.zombies.append(zombie)
        consumer.crash()
        zombie.start()
        self._until(SECOND, 3 * SECOND, "consumer again", lambda: self._again(consumer))

    @staticmethod
    def _again(process: "Consumer | Dealer | NameServer") -> None:
        if not process.alive:
            process.start()

    # -- members of the group by key

    def lost_answers(self) -> None:
        """Lose the brokers' answers to the members for some time; the members' requests arrive."""
        world = self._world
        replicas = [each.name for each in world.replicas.values()]
        cut = {(replica, each.name) for each in world.lane_members for replica in replicas}
        world.network.blocked |= cut
        world.coverage["lane answers lost"] += 1
        self._until(SECOND // 5, 2 * SECOND, "answers arrive", partial(self._reconnect, cut))

    # -- everybody else

    def name_server(self) -> None:
        """A name server ends and forgets all routes."""
        server = self._random.choice(self._world.name_servers)
        if server.alive:
            self._world.coverage["name server lost"] += 1
            server.stop()
            self._until(200 * MS, 4 * SECOND, "name server again", lambda: self._again(server))

    def dealer(self) -> None:
        """A producer of transactions ends between a half message and its end."""
        alive = [each for each in self._world.dealers if each.alive]
        if alive:
            dealer = self._random.choice(alive)
            dealer.crash()
            self._until(500 * MS, 4 * SECOND, "dealer again", lambda: self._again(dealer))

    def operator(self) -> None:
        """The operator of a queue expansion dies, or another operator starts while it continues."""
        world = self._world
        growers = [each for each in world.growers if each.alive]
        if not growers:
            return
        former = growers[-1]
        if self._random.random() < 0.5:
            former.crash()
            world.coverage["operator died"] += 1
        else:
            self._until(SECOND, 4 * SECOND, "operator ends", former.crash)
            world.coverage["operator followed while it goes on"] += 1
        world.next_operator()

    def release(self) -> None:
        """An administrator releases a parked key."""
        held = self._world.laws.held.some()
        if held:
            group, topic, key = self._random.choice(held)
            ext = {"consumerGroup": group, "topic": topic, "key": key}
            command = request(RequestCode.ORDERLYMQ_RELEASE_KEY, ext)
            self._world.tool.call(command, SECOND, lambda _: None)

    def rights(self) -> None:
        """An administrator takes away an account's permissions for some time."""
        if self._world.plan.access:
            account = self._random.choice(ACCOUNTS)
            how = self._random.choice(("deny", "delete", "another secret"))
            for_us = self._random.randrange(300 * MS, 3 * SECOND)
            self._world.administrator.deny(account, how, for_us)


TROUBLES: Final[dict[str, Callable[[Faults], None]]] = {
    "crash": Faults.crash,
    "crash all": Faults.crash_all,
    "wipe": Faults.wipe,
    "pause": Faults.pause,
    "transfer": Faults.transfer,
    "failed transfer": Faults.failed_transfer,
    "membership": lambda faults: faults.members.next(faults.leader()),
    "slow disk": Faults.slow_disk,
    "slow followers": Faults.slow_followers,
    "full disk": Faults.full_disk,
    "failing disk": Faults.failing_disk,
    "unreadable disk": Faults.unreadable_disk,
    "rot": Faults.rot,
    "weather": Faults.weather,
    "partition": Faults.partition,
    "island": Faults.island,
    "coup": Faults.coup,
    "consumer crash": Faults.consumer_crash,
    "consumer close": Faults.consumer_close,
    "consumer pause": Faults.consumer_pause,
    "consumer hangs up": Faults.consumer_hangs_up,
    "zombie": Faults.zombie,
    "name server": Faults.name_server,
    "dealer": Faults.dealer,
    "release": Faults.release,
    "rights": Faults.rights,
    "operator": Faults.operator,
}

# Faults that only some plans contain: they do not fit the others.
RARE_TROUBLES: Final[dict[str, Callable[[Faults], None]]] = {
    "links": Faults.links,
    "lost answers": Faults.lost_answers,
    "older term": Faults.older_term,
    "any membership": Faults.any_membership,
    "removal and loss": lambda faults: faults.members.remove_and_lose(faults.leader()),
    "wrong clock": Faults.wrong_clock,
}
