"""The slow obvious twin of SGLang's scheduler: a tree of lists, requests as objects, step by step.

Memory is counted in pages. `running` holds who decodes, those done since the last decode included.
"""

from dataclasses import dataclass, field

from naive_vllm import Request, Server, Step

GO, NO_TOKEN, OTHER = "go", "no token", "other"


@dataclass(eq=False)
class Node:
    key: list[int] = field(default_factory=list)  # identities of its pages
    parent: "Node | None" = None
    children: dict[int, "Node"] = field(default_factory=dict)
    locks: int = 0
    stamp: int = 0

    @property
    def path(self) -> list["Node"]:
        """Itself and all above it, but for the root."""
        return [] if self.parent is None else [self, *self.parent.path]


class Tree:
    def __init__(self):
        self.root, self.clock = Node(), 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def nodes(self, node=None) -> list[Node]:
        node = node or self.root
        return [n for child in node.children.values() for n in (child, *self.nodes(child))]

    def evictable(self) -> int:
        return sum(len(node.key) for node in self.nodes() if node.locks == 0)

    def match(self, key) -> tuple[int, Node]:
        """How many pages of `key` are there, and the node at whose end; split it if need be."""
        now, node, found = self.tick(), self.root, 0
        while found < len(key) and key[found] in node.children:
            node = node.children[key[found]]
            node.stamp = now
            common = 0
            while (
                common < len(node.key)
                and key[found : found + common + 1] == (node.key[: common + 1])
            ):
                common += 1
            found += common
            if common < len(node.key):
                return found, self.split(node, common)
        return found, node

    def split(self, node, length) -> Node:
        assert node.parent is not None
        upper = Node(node.key[:length], node.parent, {}, node.locks, self.tick())
        node.parent.children[upper.key[0]] = upper
        node.key, node.parent = node.key[length:], upper
        upper.children[node.key[0]] = node
        return upper

    def insert(self, key) -> int:
        """How many pages of `key` were there already."""
        found, node = self.match(key)
        if found < len(key):
            node.children[key[found]] = Node(key[found:], node, stamp=self.tick())
        return found

    def evict(self, pages) -> int:
        freed = 0
        while freed < pages:
            leaves = [n for n in self.nodes() if n.locks == 0 and not n.children]
            if not leaves:
                break
            oldest = min(leaves, key=lambda n: n.stamp)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.key[0]]
            freed += len(oldest.key)
        return freed


class Sglang(Server):
    """SGLang 0.5.18, synchronous."""

    old = by_prefix = False

    def __init__(self, requests, limits, cost, clients=0):
        self.page = limits.block_size
        self.tokens = limits.num_gpu_blocks * self.page
        self.slots = limits.max_num_seqs
        self.longest = min(limits.max_model_len, self.tokens)
        self.chunked = limits.chunked_prefill_size > 0
        super().__init__(requests, limits, cost, clients)
        self.caching = bool(limits.enable_prefix_caching)
        self.tree, self.unallocated = Tree(), limits.num_gpu_blocks
        self.first_ratio = min(0.7 * limits.schedule_conservativeness, 1.0)
        self.least_ratio = self.first_ratio * 0.14
        self.ratio, self.full, self.partial = self.first_ratio, False, None
        self.last, self.batch, self.decoding, self.died = None, [], [], ""
        for r in requests:
            r.limit = min(r.limit, max(1, self.cap(r)))
            r.output = min(r.output, r.limit)
            r.node, r.shared, r.holds = self.tree.root, 0, False

    def cap(self, r) -> int:
        pages = -(-r.prompt // self.page) * self.page
        return min(self.longest - 2 - r.prompt, self.tokens - pages - self.page - 1)

    def why_refused(self, r) -> str:
        if r.prompt >= self.longest - 6:
            return "input too long"
        return "too large" if self.cap(r) < 1 else ""

    def ceil(self, tokens) -> int:
        return -(-tokens // self.page) * self.page

    def floor(self, tokens) -> int:
        return tokens // self.page * self.page

    @property
    def free(self) -> int:
        return self.unallocated + self.tree.evictable()

    @property
    def holders(self) -> list[Request]:
        return [r for r in self.requests if r.holds]

    @property
    def unfinished(self) -> bool:
        return bool(self.unsent or self.sent or self.waiting or self.holders)

    def make_room(self, tokens):
        short = tokens - self.unallocated * self.page
        if short > 0:
            self.unallocated += self.tree.evict(-(-short // self.page))

    # The tree.

    def lock(self, node, by):
        for each in node.path:
            each.locks += by

    def remember(self, r):
        """What is computed of a request enters the tree."""
        full = r.computed // self.page
        found = self.tree.insert(r.identities[:full])
        self.unallocated += found - r.shared
        r.shared = full
        if len(r.emitted) < r.output:
            _, node = self.tree.match(r.identities[:full])
            self.lock(r.node, -1)
            self.lock(node, 1)
            r.node = node

    def let_go(self, r):
        self.unallocated += self.held(r) - r.shared
        self.lock(r.node, -1)
        r.node, r.shared, r.holds = self.tree.root, 0, False

    def held(self, r) -> int:
        return -(-r.computed // self.page)

    # The batch of prompts.

    def reserved(self, r) -> float:
        return min(r.limit - len(r.emitted), 4096) * self.ratio

    def begin_budget(self):
        lim = self.limits
        mixed = len(self.running) if lim.enable_mixed_chunk else 0
        self.input = lim.max_prefill_tokens - mixed
        self.chunk = lim.chunked_prefill_size - mixed
        total = 0.0
        for r in self.running:
            total += self.reserved(r)
        self.off, self.cur, self.states = mixed + total, mixed, None

    @property
    def rem_total(self) -> float:
        return self.free * self.page - self.off

    @property
    def rem_cur(self) -> int:
        return self.free * self.page - self.cur

    def charge(self, tokens, outputs):
        slack = 0 if self.old else self.page
        self.off += self.ceil(tokens) + outputs + slack
        self.cur += self.ceil(tokens) + slack
        self.input -= self.ceil(tokens)
        self.chunk -= self.ceil(tokens)

    def put(self, r, tokens, left):
        self.batch.append(r)
        self.granted[r] = tokens
        if tokens == left:
            self.partial = None if self.partial is r else self.partial
        else:
            self.partial = r
        self.charge(tokens, min(r.limit, 4096) if tokens == left else 0)

    def go_on(self):
        r = self.partial
        assert r is not None
        left = r.known - r.computed
        most = self.chunk
        if not self.old and min(self.chunk, int(self.rem_total)) > 0:
            most = min(self.chunk, int(self.rem_total))
        self.put(r, min(left, most), left)

    def result(self) -> str:
        if self.rem_total <= 0 or self.rem_cur <= 0:
            return NO_TOKEN
        return OTHER if self.input <= 0 or (self.chunked and self.chunk <= 0) else GO

    def take(self, r):
        assert self.waiting[0] is r
        self.waiting.pop(0)
        r.waited += self.now - r.since
        r.holds = True
        self.admitted.append(r)
        if not r.preemptions:
            r.start = self.now

    def offer(self, r) -> str:
        if self.limits.ignore_eos and not self.caching:
            return self.offer_to_the_end(r)
        hit, node = 0, self.tree.root
        if self.caching:
            key = r.identities[: (r.known - 1) // self.page]
            hit, node = r.match if self.sorted and self.old else self.tree.match(key)
        ext = r.known - hit * self.page
        total = ext + min(r.limit, 4096)
        if not self.old:
            total = ext + min(max(r.limit - len(r.emitted), 0), 4096) + self.page
        if total >= self.rem_total:
            return NO_TOKEN
        if self.batch and self.old and ext > self.input:
            return OTHER
        if self.batch and not self.old and not self.chunked and self.ceil(ext) >= self.input:
            return OTHER
        self.lock(node, 1)
        tokens, answer = ext, GO
        if total > self.rem_total or (total == self.rem_total and not self.old):
            answer = NO_TOKEN
        elif self.chunked and self.ceil(ext) > self.chunk:
            before = hit * self.page
            tokens = self.floor(self.floor(self.chunk) + before) - before
            answer = GO if tokens > 0 else OTHER
        if answer != GO:
            self.lock(node, -1)
            return answer
        self.take(r)
        r.node, r.shared, r.computed = node, hit, hit * self.page
        self.put(r, tokens, ext)
        return self.result()

    def offer_to_the_end(self, r) -> str:
        if not self.old and self.ceil(r.known) > min(self.rem_cur, self.rem_total):
            return NO_TOKEN
        own = (r.limit - len(r.emitted), r.known)
        if self.states is None:
            others = [*self.running, *self.batch]
            self.states = [own, *((x.limit - len(x.emitted), x.known) for x in others)]
            self.states = [state for state in self.states if state[0] > 0]
            self.states.sort(key=lambda state: state[0])
        elif own[0] > 0:
            places = [k for k, (left, _) in enumerate(self.states) if left >= own[0]]
            self.states.insert((places or [max(0, len(self.states) - 1)])[0], own)
        room = self.rem_cur - (r.prompt if self.old else self.ceil(r.known))
        for k, (left, occupied) in enumerate(self.states):
            rest = len(self.states) - k
            if self.old:
                steps = self.states[k + 1][0] if rest > 1 else left
                if room - steps * rest <= 0:
                    return NO_TOKEN
            elif room - left * rest <= rest:
                return NO_TOKEN
            room += occupied
        tokens = r.known
        if self.chunked and tokens > self.chunk:
            if self.chunk <= 0:
                return OTHER
            tokens = self.chunk
        self.take(r)
        self.put(r, tokens, r.known)
        return self.result()

    def sort_line(self):
        self.sorted = self.by_prefix and self.caching and len(self.waiting) <= 128
        if not self.sorted:
            return
        seen, order = [], {}
        for r in self.waiting:
            known = r.known - 1 if self.old else r.known
            hit, node = r.match = self.tree.match(r.identities[: known // self.page])
            hit *= self.page
            order[r] = -min(hit, r.known - 1)
            if not self.old and hit <= 32 <= r.known:
                if r.opening in seen:
                    order[r] = 1
                else:
                    seen.append(r.opening)
        self.waiting.sort(key=lambda r: order[r])

    def prefill(self) -> bool:
        if self.partial is None and (self.full or not self.waiting):
            return False
        slots = self.slots - len(self.running)
        if not self.old:
            slots = min(slots, self.slots - len(self.holders))
        if slots <= 0 and (self.old or self.partial is None):
            self.full = True
            return False
        self.sort_line()
        self.begin_budget()
        if self.partial is not None:
            self.go_on()
        for r in list(self.waiting):
            if len(self.batch) >= slots:
                self.full = True
                break
            answer = self.offer(r)
            if answer == NO_TOKEN:
                self.full = True
            if answer != GO:
                break
        if self.batch:
            self.allocate_prompts()
        return bool(self.batch)

    def allocate_prompts(self):
        tokens = sum(self.granted.values())
        self.make_room(tokens + (self.page * len(self.batch) if self.page > 1 else 0))
        for r, granted in self.granted.items():
            need = -(-(r.computed + granted) // self.page) - self.held(r)
            self.unallocated -= need
        if self.unallocated < 0:
            self.died = "Out of memory. Try to lower your batch size."

    # The decodes.

    def wanted(self, requests) -> int:
        return sum(r.computed % self.page == 0 for r in requests)

    def drop_done(self) -> bool:
        before = len(self.running)
        self.running = [r for r in self.running if r.holds]
        return len(self.running) < before

    def fits(self, requests) -> bool:
        if self.old:
            if self.unallocated < len(requests):
                self.unallocated += self.tree.evict(len(requests))
            return self.unallocated >= len(requests)
        self.make_room(self.wanted(requests) * self.page)
        return self.unallocated >= self.wanted(requests)

    def retract(self):
        keep = sorted(self.running, key=lambda r: (len(r.emitted), -r.prompt), reverse=True)
        first = True
        while len(keep) > 1 and (first or self.is_short(keep)):
            first = False
            r = keep.pop()
            self.preempted.append([r.id, r.computed, len(r.emitted)])
            r.preemptions += 1
            r.recomputed += r.computed
            self.let_go(r)
            r.computed = 0
            self.join(r, len(self.waiting))
            self.make_room(20 * len(keep))
        if self.unallocated < self.wanted(keep):
            self.died = "nobody left to retract"
        self.running = keep
        emitted = sum(len(r.emitted) for r in keep)
        limits = sum(r.limit for r in keep)
        self.ratio = min(1.0, (emitted + 20 * len(keep)) / (limits + (0 if self.old else 1)))

    def is_short(self, keep) -> bool:
        return self.unallocated < 20 * len(keep) if self.old else not self.fits(keep)

    def decode_running(self):
        self.make_room(len(self.running) * self.page)
        self.unallocated -= self.wanted(self.running)
        if self.unallocated < 0:
            self.died = "Out of memory. Try to lower your batch size."
        self.decoding = list(self.running)
        for r in self.decoding:
            self.granted[r] = 1

    def decode(self):
        shrank = self.drop_done()
        if self.running:
            if self.fits(self.running):
                decay = (self.first_ratio - self.least_ratio) / 600
                self.ratio = max(self.ratio - decay, self.least_ratio)
            else:
                self.retract()
                shrank = True
        if shrank:
            self.full = False
        if self.running and not self.died:
            self.decode_running()
        return shrank

    def take_up_last_batch(self):
        """Whoever is not done of the last prefill batch runs on."""
        if self.last is None:
            return
        if self.partial is not None and self.caching:
            self.remember(self.partial)
        kept = [r for r in self.last if r.holds and r is not self.partial]
        if self.old and self.partial is None:
            kept = self.last
        if self.old:
            self.full = self.full and self.partial is None
        elif len(kept) < len(self.last) or not self.running:
            self.full = False
        self.running += kept
        self.last = None

    def plan(self):
        self.batch, self.decoding = [], []
        self.take_up_last_batch()
        moved = False
        if self.prefill():
            self.last = self.batch
            if self.limits.enable_mixed_chunk and not self.died:
                self.drop_done()
                self.decode_running()
                self.last = [*self.batch, *self.running]
                self.running = []
        else:
            moved = self.decode()
        if not self.granted and (self.old or not self.waiting):
            self.ratio = self.first_ratio
        self.idles = moved and not self.granted and bool(self.waiting)

    def step(self) -> bool:
        """Whether something was done, or somebody is to come."""
        self.arrived, self.admitted, self.preempted, self.granted = [], [], [], {}
        if not (self.waiting or self.holders) and self.sent and self.sent[0].arrival > self.now:
            self.plan()
            self.now = self.sent[0].arrival
        self.receive()
        self.plan()
        if self.died:
            return False
        entry = self.begin_entry()
        prompts = sum(self.granted[r] for r in self.batch)
        overhead, per_token, base, per_seq = self.cost
        ms = overhead + per_token * prompts
        if self.decoding:
            ms += base + per_seq * len(self.decoding)
        if not self.granted and not self.idles:
            if not self.sent:
                return False
            self.now = self.sent[0].arrival
            return True
        self.steps.append(Step(self.now, ms, prompts, len(self.decoding), self.free))
        self.now += ms
        entry["fin"] = self.advance_in_order()
        self.end_entry(entry)
        self.send()
        return True

    def advance_in_order(self) -> list[int]:
        """Time has passed: results in the order of the batch."""
        done = []
        for r, tokens in self.granted.items():
            r.computed += tokens
            if r is self.partial:
                continue
            r.emitted.append(self.now)
            over = len(r.emitted) == r.output
            if self.caching and (over or r not in self.decoding):
                self.remember(r)
            if over:
                done.append(r.id)
                r.finish = self.now
                self.let_go(r)
                self.idle_clients += 1
        return done

    # In the form of the recordings.

    def begin_entry(self) -> dict:
        entry = {"i": int(self.now), "arr": self.arrived}
        entry["k"] = {(0, 0): "I", (1, 0): "P", (0, 1): "D", (1, 1): "M"}[
            bool(self.batch), bool(self.decoding)
        ]
        entry["p"] = [[r.id, self.granted[r]] for r in self.batch]
        entry["d"] = [r.id for r in self.decoding]
        entry["new"] = [r.id for r in self.admitted if not r.preemptions]
        entry["res"] = [r.id for r in self.admitted if r.preemptions]
        entry["hit"] = [[r.id, r.computed] for r in self.admitted if r.computed]
        entry["ret"] = self.preempted
        if self.partial is not None:
            entry["part"] = self.partial.id
        entry["fs"] = self.free * self.page
        return entry

    def end_entry(self, entry):
        if self.free * self.page != entry["fs"]:
            entry["fb"] = self.free * self.page
        if self.caching:
            entry["av"] = self.unallocated * self.page
        entry["q"] = [len(self.holders), len(self.waiting)]
        entry["full"] = int(self.full)
        if entry["k"] != "D" or entry["ret"]:
            entry["r"] = round(self.ratio, 6)
        optional = ("i", "part", "fs", "fb")
        self.log.append({k: v for k, v in entry.items() if v != [] and (v != 0 or k in optional)})


class SglangLpm(Sglang):
    by_prefix = True


class SglangAt040(Sglang):
    """SGLang 0.4.0, from the table of what differs."""

    old = by_prefix = True


class SglangAt040Fcfs(Sglang):
    old = True


POLICIES = {
    "sglang": Sglang,
    "sglang_lpm": SglangLpm,
    "sglang_0_4_0": SglangAt040,
    "sglang_0_4_0_fcfs": SglangAt040Fcfs,
}
