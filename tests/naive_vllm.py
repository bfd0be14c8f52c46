"""The slow obvious twin of the policies that keep KV blocks: objects, lists, one step at a time.

A request has no phase. `known` are its prompt and the tokens it has emitted, `computed` those of
them whose KV is there; a step that computes the last known one emits the next.
"""

from dataclasses import dataclass, field
from math import inf, nan


@dataclass(eq=False)
class Block:
    identity: int | None = None  # by which the prefix cache knows its content
    users: int = 0


class Pool:
    """Free blocks stand in a queue. Allocation pops its head and drops what was known of it."""

    def __init__(self, count, blanks_to_the_head):
        self.free = [Block() for _ in range(count)]
        self.known = {}  # identity -> blocks, in order of registration
        self.blanks_to_the_head = blanks_to_the_head

    def take(self) -> Block:
        block = self.free.pop(0)
        if block.identity is not None:
            self.known[block.identity].remove(block)
        block.identity, block.users = None, 1
        return block

    def give_back(self, blocks):
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                to_head = block.identity is None and self.blanks_to_the_head
                self.free.insert(0 if to_head else len(self.free), block)

    def register(self, block, identity):
        block.identity = identity
        self.known.setdefault(identity, []).append(block)

    def hits(self, identities) -> list[Block]:
        """The longest run of known blocks at the front; of like ones the earliest registered."""
        found = []
        for identity in identities:
            if not self.known.get(identity):
                break
            found.append(self.known[identity][0])
        return found

    def use(self, block):
        if block.users == 0:
            self.free.remove(block)
        block.users += 1


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    prompt: int
    output: int
    limit: int
    priority: float = 0.0
    identities: list = field(default_factory=list)  # of its full blocks, for prefix caching
    opening: object = None  # its first tokens, by which SGLang compares those in line
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    registered: int = 0
    emitted: list[float] = field(default_factory=list)  # when each output token came out
    start: float = nan
    finish: float = nan
    preemptions: int = 0
    recomputed: int = 0
    since: float = 0.0  # when it began to wait
    waited: float = 0.0
    in_flight: int = 0  # output tokens that a batch not yet processed brings
    foreseen: int = 0  # outputs after which the scheduler knows it to be done; 0: all

    @property
    def known(self) -> int:
        return self.prompt + len(self.emitted) + self.in_flight

    @property
    def decodes(self) -> bool:
        return self.known > self.prompt and self.known - self.computed == 1

    @property
    def first(self) -> float:
        return self.emitted[0] if self.emitted else nan

    @property
    def last(self) -> float:
        return self.emitted[-1] if self.emitted else nan

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.emitted, self.emitted[1:], strict=False)]


@dataclass
class Step:
    t0: float
    ms: float
    prefill: int
    decodes: int
    free: int  # blocks, once it is planned


class Server:
    """Times in ms; cost: the coefficients of `linear`. A subclass is a policy: see its `plan`."""

    null_blocks = 0  # of the pool, nobody's
    blanks_to_the_head = True
    budgeted = True
    key = None  # what an ordered line goes by
    host = 0.0  # ms of a plan; only the asynchronous loop minds it

    def __init__(self, requests, limits, cost, clients=0):
        self.requests, self.limits, self.cost = requests, limits, cost
        self.usable = limits.num_gpu_blocks - self.null_blocks
        self.pool = Pool(self.usable, self.blanks_to_the_head)
        self.refused = {r.id: why for r in requests if (why := self.why_refused(r))}
        self.unsent = [r for r in requests if r.id not in self.refused]
        self.idle_clients = clients or len(requests)
        self.sent, self.waiting, self.running = [], [], []
        self.now, self.steps, self.log = 0.0, [], []

    def why_refused(self, r) -> str:
        if r.prompt >= self.limits.max_model_len:
            return "too long"
        most = min(r.prompt + r.limit, self.limits.max_model_len)
        return "too large" if self.blocks_for(most) > self.usable else ""

    def blocks_for(self, tokens) -> int:
        return -(-tokens // self.limits.block_size)

    @property
    def free(self) -> int:
        return len(self.pool.free)

    @property
    def seat_is_free(self) -> bool:
        return len(self.running) < self.limits.max_num_seqs

    @property
    def unfinished(self) -> bool:
        return bool(self.unsent or self.sent or self.waiting or self.running)

    def send(self, now=None):
        """Each idle client sends the next request, at once or at the request's own time."""
        now = self.now if now is None else now
        while self.idle_clients and self.unsent:
            r = self.unsent.pop(0)
            r.arrival = max(r.arrival, now)
            self.sent.append(r)
            self.idle_clients -= 1

    def receive(self):
        while self.sent and self.sent[0].arrival <= self.now:
            r = self.sent.pop(0)
            self.arrived.append(r.id)
            self.join(r, len(self.waiting))

    def join(self, r, place):
        r.since = self.now if r.preemptions else r.arrival
        self.waiting.insert(place, r)
        if self.key:
            self.waiting.sort(key=self.key)

    def admit(self) -> Request:
        r = self.waiting.pop(0)
        r.waited += self.now - r.since
        self.running.append(r)
        self.admitted.append(r)
        if not r.preemptions:
            r.start = self.now
        return r

    def hold(self, r, tokens):
        """It holds the blocks for so many tokens, or had more."""
        while len(r.blocks) < self.blocks_for(tokens):
            r.blocks.append(self.pool.take())

    def grant(self, r, tokens):
        self.hold(r, r.computed + tokens)
        self.granted[r] = tokens
        self.left -= tokens
        self.register(r, min(r.computed + tokens, r.known - r.in_flight))

    def register(self, r, tokens):
        """The prefix cache knows its full blocks up to so many tokens."""
        full = tokens // self.limits.block_size
        for k in range(r.registered, min(full, len(r.identities))):
            self.pool.register(r.blocks[k], r.identities[k])
            r.registered = k + 1

    def let_go(self, r):
        self.pool.give_back(r.blocks)
        self.running.remove(r)
        r.blocks, r.registered = [], 0

    def preempt(self, r):
        self.preempted.append([r.id, r.computed, len(r.emitted)])
        self.left += self.granted.pop(r, 0)
        self.let_go(r)
        r.preemptions += 1
        r.recomputed += r.computed
        r.computed = 0
        self.join(r, 0)

    def run_in_order(self, most, a_victim_ends_it=False):
        """The running in order of admission. Who lacks a block takes those of who comes last."""
        k = 0
        while k < len(self.running) and self.left > 0:
            r = self.running[k]
            last = min(r.foreseen or r.output, self.limits.max_model_len - r.prompt)
            if r.in_flight and len(r.emitted) + r.in_flight >= last:
                k += 1
                continue
            tokens = min(r.known - r.computed, most, self.left)
            need = self.blocks_for(r.computed + tokens) - len(r.blocks)
            while need > self.free and r in self.running:
                victim = max(self.running, key=self.key) if self.key else self.running[-1]
                k -= self.running.index(victim) < k
                self.preempt(victim)
            if r in self.running:
                self.grant(r, tokens)
                k += 1
            elif a_victim_ends_it:
                return

    def plan(self):
        raise NotImplementedError

    def step(self) -> bool:
        """Whether something was done, or somebody is to come."""
        self.arrived, self.admitted, self.preempted, self.granted = [], [], [], {}
        if not (self.waiting or self.running) and self.sent:
            self.now = max(self.now, self.sent[0].arrival)
        self.receive()
        self.left = self.limits.max_num_batched_tokens if self.budgeted else inf
        entry = {"i": int(self.now), "arr": self.arrived}
        self.plan()
        decodes = [r for r in self.granted if r.decodes]
        prefill = sum(tokens for r, tokens in self.granted.items() if not r.decodes)
        overhead, per_token, base, per_seq = self.cost
        ms = overhead + per_token * prefill
        if decodes:
            ms += base + per_seq * len(decodes)
        self.steps.append(Step(self.now, ms, prefill, len(decodes), self.free))
        entry["s"] = [r.id if n == 1 else [r.id, n] for r, n in self.granted.items()]
        entry["new"] = [r.id for r in self.admitted if not r.preemptions]
        entry["res"] = [r.id for r in self.admitted if r.preemptions]
        entry["hit"] = [[r.id, r.computed] for r in self.admitted if r.computed]
        entry["pre"], entry["fs"] = self.preempted, self.free
        busy = bool(self.granted or self.preempted)
        if ms == 0 and not busy and self.sent:
            self.now = self.sent[0].arrival
        self.now += ms
        entry |= self.advance()
        entry |= {"fb": self.free} if self.free != entry["fs"] else {}
        entry["q"] = [len(self.running), len(self.waiting)]
        self.log.append({k: v for k, v in entry.items() if k == "s" or v != []})
        self.send()
        return busy or bool(self.sent)

    def advance(self) -> dict:
        """Time has passed: what was granted is computed, and some emit a token or are done."""
        mute, done = [], []
        for r, tokens in self.granted.items():
            r.computed += tokens
            if r.computed < r.known:
                mute.append(r.id)
                continue
            r.emitted.append(self.now)
            if len(r.emitted) == r.output or r.known >= self.limits.max_model_len:
                done.append(r.id)
                r.finish = self.now
                self.let_go(r)
                self.idle_clients += 1
        return {"nt": mute, "fin": done}

    def run(self, patience=8) -> "Server":
        """To the end, or until so many steps in a row have done nothing and nobody is to come."""
        idle = 0
        self.send()
        while self.unfinished and idle < patience:
            idle = 0 if self.step() else idle + 1
        return self


def by_priority(r):
    return r.priority, r.id


class VllmV1(Server):
    """vLLM 0.33.0, synchronous."""

    null_blocks = 1
    spares_a_lone_one = adapts = gates_whole_prompts = keeps_watermark = chunking_is_a_choice = True
    a_victim_ends_it = True

    def threshold(self) -> float:
        lim, present = self.limits, len(self.running) + len(self.waiting)
        if lim.long_prefill_token_threshold == 0 or (self.spares_a_lone_one and present <= 1):
            return inf
        if self.adapts and lim.long_prefill_token_threshold_adaptive:
            return max(lim.long_prefill_token_threshold, lim.max_num_batched_tokens // present)
        return lim.long_prefill_token_threshold

    def plan(self):
        most = self.threshold()
        self.run_in_order(most, self.a_victim_ends_it)
        while not self.preempted and self.left > 0 and self.waiting and self.seat_is_free:
            if not self.admit_head(most):
                return

    def admit_head(self, most) -> bool:
        lim, r = self.limits, self.waiting[0]
        hits = self.pool.hits(r.identities[: (r.known - 1) // lim.block_size])
        cached = len(hits) * lim.block_size
        tokens = min(r.known - cached, most)
        if self.chunking_is_a_choice and not lim.enable_chunked_prefill and tokens > self.left:
            return False
        tokens = min(tokens, self.left)
        gated = self.gates_whole_prompts and lim.scheduler_reserve_full_isl
        need = self.blocks_for(r.known if gated else cached + tokens) - len(hits)
        need += sum(block.users == 0 for block in hits)
        if self.running and self.keeps_watermark:
            need += int(lim.watermark * lim.num_gpu_blocks)
        if need > self.free:
            return False
        self.admit()
        for block in hits:
            self.pool.use(block)
        r.blocks, r.computed, r.registered = hits, cached, len(hits)
        self.grant(r, tokens)
        return True


@dataclass(eq=False)
class Batch:
    index: int
    granted: dict
    sampled: list  # whose next token it brings
    end: float  # on the device
    stale: list = field(default_factory=list)  # of these, preempted since


class Asynchronous(VllmV1):
    """The loop of vLLM 0.33.0 as it ships: a queue of two batches, planned and not yet processed.

    nap: ms that an idle loop sleeps.
    """

    nap = 1.0

    def __init__(self, requests, limits, cost, clients=0):
        super().__init__(requests, limits, cost, clients)
        self.queue, self.flush, self.busy_until, self.passes = [], False, 0.0, 0

    @property
    def unfinished(self) -> bool:
        return super().unfinished or self.flush or bool(self.queue)

    @property
    def asked(self) -> bool:
        return bool(self.waiting or self.running or self.flush)

    def preempt(self, r):
        flying = r.in_flight
        for batch in self.queue:
            if r in batch.sampled:
                batch.stale.append(r)
        r.in_flight = 0
        super().preempt(r)
        self.preempted[-1].append(flying)
        r.since = max(self.now, self.busy_until)

    def step(self) -> bool:
        self.arrived, self.admitted, self.preempted, self.granted = [], [], [], {}
        if not self.asked and not self.queue:
            self.jump()
        self.clock()
        self.receive()
        entry: dict = {"i": self.passes, "t": self.now, "arr": self.arrived}
        goes_on, planned = False, self.asked
        if planned:
            self.flush = False
            self.left = self.limits.max_num_batched_tokens
            self.plan()
            entry["fs"] = self.free
            entry |= self.launch()
            goes_on = len(self.queue) < 2 and bool(self.granted or self.waiting or self.running)
        if self.queue and not goes_on:
            entry |= self.process(self.queue.pop(0))
        if self.granted:
            self.steps[-1].free = self.free
        if not self.granted and self.asked:
            self.now += self.nap
            entry["sl"] = 1
        entry["pre"] = self.preempted
        entry |= {"fb": self.free} if self.free != entry.get("fs") else {}
        entry["q"] = [len(self.running), len(self.waiting)]
        self.log.append({k: v for k, v in entry.items() if k == "s" or v != []})
        self.passes += 1
        self.send()
        idle = not (self.granted or self.preempted or entry.get("fin"))
        return not idle or bool(self.sent)

    def jump(self):
        self.now = max(self.now, self.sent[0].arrival)

    def clock(self):
        """The moment at which a pass begins, where it is not a matter of time."""

    def launch(self) -> dict:
        decodes = [r for r in self.granted if r.decodes]
        prefill = sum(tokens for r, tokens in self.granted.items() if not r.decodes)
        overhead, per_token, base, per_seq = self.cost
        ms = overhead + per_token * prefill
        if decodes:
            ms += base + per_seq * len(decodes)
        entry = {
            "s": [r.id if n == 1 else [r.id, n] for r, n in self.granted.items()],
            "new": [r.id for r in self.admitted if not r.preemptions],
            "res": [r.id for r in self.admitted if r.preemptions],
            "hit": [[r.id, r.computed] for r in self.admitted if r.computed],
        }
        end = self.now
        if self.granted:
            free_at = max(self.now, self.busy_until)
            self.now += self.host
            begins = max(self.now, self.busy_until)
            self.busy_until = end = begins + ms
            self.steps.append(Step(free_at, end - free_at, prefill, len(decodes), self.free))
            if not self.host:
                self.steps[-1].ms = ms
            entry |= {"t0": begins, "t1": end}
        sampled = []
        for r, tokens in self.granted.items():
            r.computed += tokens
            if r.computed == r.known:
                r.in_flight += 1
                sampled.append(r)
        entry["nt"] = [r.id for r in self.granted if r not in sampled]
        self.queue.append(Batch(self.passes, dict(self.granted), sampled, end))
        return entry

    def process(self, batch) -> dict:
        entry: dict = {"u": batch.index, "st": [r.id for r in batch.sampled if r in batch.stale]}
        if batch.granted and batch.end > self.now:
            self.now = entry["te"] = batch.end
        done = []
        for r in batch.sampled:
            if r.finish == r.finish:  # it ended with the token before, and this one is of no use
                continue
            r.emitted.append(batch.end)
            stale = r in batch.stale
            if not stale:
                r.in_flight -= 1
                self.register(r, r.computed - sum(b.granted.get(r, 0) for b in self.queue))
            if len(r.emitted) == r.output or r.prompt + len(r.emitted) >= self.limits.max_model_len:
                done.append(r.id)
                r.finish = batch.end  # when the device is done: the host may see it a plan later
                self.flush = True
                self.idle_clients += 1
                self.send(r.finish)
                if stale:  # what it lost is not computed again
                    self.waiting.remove(r)
                    r.recomputed -= r.prompt + len(r.emitted) - 1
                else:
                    self.let_go(r)
        return entry | {"fin": done}


def by_passes(kind):
    """The same loop, whose clock counts its passes."""

    class Counted(kind):
        def jump(self):
            self.passes = max(self.passes, self.sent[0].arrival)

        def clock(self):
            self.now = self.passes

    return Counted


class AsynchronousPriority(Asynchronous):
    key = staticmethod(by_priority)
    a_victim_ends_it = False


class VllmV1Priority(VllmV1):
    key = staticmethod(by_priority)
    a_victim_ends_it = False


class VllmV1At0171(VllmV1):
    """Before gate, watermark, adaptive threshold, and the reuse of blank blocks first."""

    spares_a_lone_one = adapts = gates_whole_prompts = keeps_watermark = False
    blanks_to_the_head = False


class VllmV1At0171Priority(VllmV1At0171):
    key = staticmethod(by_priority)


class VllmV1At085(VllmV1At0171):
    chunking_is_a_choice = False


class VllmV0(Server):
    """Whole prompts while they fit, and alone; else a token each, for which a block must be free,
    needed or not."""

    def plan(self):
        margin = self.limits.num_gpu_blocks // 100
        while self.waiting and self.seat_is_free and self.waiting[0].known <= self.left:
            if self.blocks_for(self.waiting[0].known) + margin > self.free:
                break
            r = self.admit()
            self.grant(r, r.known)
        for r in [] if self.granted else list(self.running):
            while r in self.running and self.free == 0:
                self.preempt(self.running[-1])
            if r in self.running:
                self.grant(r, 1)


class Orca(Server):
    """Memory for prompt and declared limit is reserved at admission; no budget of tokens."""

    budgeted = False

    def reservation(self, r) -> int:
        return min(r.prompt + r.limit, self.limits.max_model_len)

    def plan(self):
        for r in self.running:
            self.grant(r, 1)
        while self.waiting and self.seat_is_free:
            if self.blocks_for(self.reservation(self.waiting[0])) > self.free:
                return
            r = self.admit()
            self.hold(r, self.reservation(r))
            self.grant(r, r.known)


class OrcaMax(Orca):
    def reservation(self, r) -> int:
        return self.limits.max_model_len


class Sarathi(Server):
    """All decodes, prompts begun, then new ones in chunks; blocks for a whole prompt at once."""

    def plan(self):
        self.make_way()
        before = len(self.preempted)
        self.run_in_order(inf)
        while len(self.preempted) == before and self.left > 0 and self.waiting:
            known = self.waiting[0].known
            if not self.seat_is_free or self.blocks_for(known) > self.free:
                return
            r = self.admit()
            self.hold(r, known)
            self.grant(r, min(known, self.left))

    def make_way(self):
        pass


class Sjf(Sarathi):
    """The line goes by declared limit, and the longest is the first to lose its memory."""

    @staticmethod
    def key(r):
        return r.limit, r.id


class Priority(Sarathi):
    """The line goes by priority; as an option, the urgent take a seat from who ranks last."""

    key = staticmethod(by_priority)

    def make_way(self):
        if self.limits.preempt_on_arrival and self.waiting and not self.seat_is_free:
            last = max(self.running, key=self.key)
            if self.waiting[0].priority < last.priority:
                self.preempt(last)


ASYNCHRONOUS = {"vllm_v1": Asynchronous, "vllm_v1_priority": AsynchronousPriority}
POLICIES = {
    "vllm_v1": VllmV1,
    "vllm_v1_priority": VllmV1Priority,
    "vllm_v1_0_17_1": VllmV1At0171,
    "vllm_v1_0_17_1_priority": VllmV1At0171Priority,
    "vllm_v1_0_8_5": VllmV1At085,
    "vllm_v0": VllmV0,
    "orca": Orca,
    "orca_max": OrcaMax,
    "sarathi": Sarathi,
    "sjf": Sjf,
    "priority": Priority,
}
