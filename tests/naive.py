"""The slow obvious twin of sim: requests as objects, lines as lists, one step after the other."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    prompt: int
    output: int
    computed: int = 0  # prompt tokens
    emitted: list[float] = field(default_factory=list)  # when each output token came out
    seat: int = -1
    start: float = -1.0  # seat taken
    finish: float = -1.0  # seat given back

    @property
    def first(self) -> float:
        return self.emitted[0]

    @property
    def last(self) -> float:
        return self.emitted[-1]

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.emitted, self.emitted[1:], strict=False)]

    @property
    def decodes(self) -> bool:
        return 0 < len(self.emitted) < self.output

    @property
    def done(self) -> bool:
        return len(self.emitted) == self.output


@dataclass
class Step:
    t0: float
    ms: float
    prefill: int
    decodes: int


@dataclass
class Plan:
    """Who computes how much of its prompt; and what is charged beyond that and the decodes."""

    prompts: dict[Request, int]
    padded_prefill: int = 0
    padded_decodes: int = 0


class Server:
    """Times in ms. rows: (arrival, prompt, output), sorted; cost: the coefficients of `linear`."""

    def __init__(self, rows, limits, cost, clients=0):
        self.requests = [Request(i, *row) for i, row in enumerate(rows)]
        self.limits, self.cost = limits, cost
        self.unsent, self.sent, self.line = list(self.requests), [], []
        self.seats = [None] * limits.max_num_seqs
        self.idle_clients = clients or len(rows)
        self.now, self.steps = 0.0, []

    @property
    def seated(self):
        return [r for r in self.seats if r is not None]

    @property
    def prefilling(self):
        return sorted((r for r in self.seated if not r.emitted), key=lambda r: r.id)

    @property
    def decoding(self):
        return [r for r in self.seated if r.decodes]

    def send(self):
        """Each idle client sends the next request, at once or at the request's own time."""
        while self.idle_clients and self.unsent:
            r = self.unsent.pop(0)
            r.arrival = max(r.arrival, self.now)
            self.sent.append(r)
            self.idle_clients -= 1

    def receive(self):
        while self.sent and self.sent[0].arrival <= self.now:
            self.line.append(self.sent.pop(0))

    def seat_next(self) -> Request:
        r = self.line.pop(0)
        r.seat, r.start = self.seats.index(None), self.now
        self.seats[r.seat] = r
        return r

    def release(self, r):
        r.finish = self.now
        self.seats[r.seat] = None
        self.idle_clients += 1

    def static(self) -> Plan:
        if self.seated:
            return Plan({}, padded_decodes=len(self.seated) - len(self.decoding))
        while self.line and None in self.seats:
            self.seat_next()
        wave = {r: r.prompt for r in self.seated}
        longest = max(wave.values(), default=0)
        return Plan(wave, padded_prefill=longest * len(wave) - sum(wave.values()))

    def continuous(self) -> Plan:
        left, prompts = self.limits.max_num_batched_tokens - len(self.decoding), {}
        while self.line and None in self.seats:
            alone = not self.seated
            if self.line[0].prompt > left and not alone:
                break
            r = self.seat_next()
            prompts[r] = r.prompt
            left -= r.prompt
        return Plan(prompts)

    def chunked(self) -> Plan:
        left, prompts = self.limits.max_num_batched_tokens - len(self.decoding), {}
        while self.line and None in self.seats and left > 0:
            self.seat_next()
        for r in self.prefilling:
            prompts[r] = max(0, min(self.limits.chunk, r.prompt - r.computed, left))
            left -= prompts[r]
        return Plan(prompts)

    def milliseconds(self, prefill, decodes) -> float:
        overhead, per_token, base, per_seq = self.cost
        ms = overhead + per_token * prefill
        return ms + (base + per_seq * decodes) if decodes else ms

    def step(self, policy):
        decoding = self.decoding
        plan = getattr(self, policy)()
        prefill, decodes = sum(plan.prompts.values()), len(decoding)
        if prefill + decodes == 0:
            self.now = self.sent[0].arrival
            return
        ms = self.milliseconds(prefill + plan.padded_prefill, decodes + plan.padded_decodes)
        self.steps.append(Step(self.now, ms, prefill, decodes))
        self.now += ms
        for r, tokens in plan.prompts.items():
            r.computed += tokens
            if r.computed == r.prompt:
                r.emitted.append(self.now)
        for r in decoding:
            r.emitted.append(self.now)
        together = policy == "static" and not all(r.done for r in self.seated)
        for r in self.seated:
            if r.done and not together:
                self.release(r)

    def run(self, policy) -> "Server":
        self.send()
        while self.unsent or self.sent or self.line or self.seated:
            self.receive()
            self.step(policy)
            self.send()
        return self


POLICIES = ("static", "continuous", "chunked")
