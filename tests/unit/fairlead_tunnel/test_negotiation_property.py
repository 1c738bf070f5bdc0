"""The client's negotiation in any order of events, against a model of the mesh."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.negotiation import (
    MakeOffer,
    Negotiation,
    NegotiationState,
    Outgoing,
    SendCandidates,
)

S = NegotiationState


@dataclass
class Model:
    """A mesh that keeps candidates of the round, each once, and what should be there."""

    found: list[str] = field(default_factory=list)
    is_gathered: bool = False
    kept: list[str] = field(default_factory=list)
    ended: bool = False

    def take(self, batch: SendCandidates) -> None:
        assert not self.ended or set(batch.candidates) <= set(self.kept)
        self.kept += [each for each in batch.candidates if each not in self.kept]
        self.ended = self.ended or batch.ended


ACTIONS = st.sampled_from(
    ["found", "gathered", "send", "arrive", "lose", "lose_reply", "answer", "up", "down", "restart"]
)


@given(st.lists(ACTIONS, max_size=60))
def test_in_any_order_each_candidate_arrives_once_in_its_place(actions: list[str]) -> None:
    it, model, counter = Negotiation(trickles=True), Model(), 0
    it.begin()
    under_way: list[Outgoing] = []
    was_up = False

    def steps() -> None:
        nonlocal model, was_up
        while (step := it.next_step()) is not None:
            if isinstance(step, MakeOffer):
                model, was_up = Model(), False
                it.offer_made(step.round, f"offer {step.round}")

    def settle(kind: str) -> None:
        if not under_way:
            return
        message = under_way.pop(0)
        is_of_round = message.round == it.round
        if isinstance(message, SendCandidates) and is_of_round and kind != "lose":
            model.take(message)
        if kind == "arrive":
            it.sent(message, it.round)
        else:
            it.failed(message, is_final=False)

    for action in actions:
        steps()
        match action:
            case "found" if not was_up and not model.is_gathered:
                counter += 1
                model.found.append(f"c{counter}")
                it.candidate_found(f"c{counter}")
            case "gathered":
                model.is_gathered = True
                it.gathering_done()
            case "send":
                message = it.next_message()
                if message is not None:
                    assert not (was_up and isinstance(message, SendCandidates))
                    under_way.append(message)
            case "arrive" | "lose" | "lose_reply":
                settle(action)
            case "answer":
                it.answer(it.round, "answer")
            case "up":
                it.path_up()
                was_up = was_up or it.state is S.CONNECTED
            case "down":
                it.path_down()
            case "restart":
                it.restart()
        assert model.kept == model.found[: len(model.kept)]
    steps()
    if was_up:
        return
    for _ in range(200):
        while (due := it.next_message()) is not None:
            under_way.append(due)
        if not under_way:
            break
        settle("arrive")
    assert model.kept == model.found
    assert model.ended == model.is_gathered
