"""How the rows of one step attend, by the model that predicts their time (docs/model.md §4).

The policy records this choice and the scheduler writes it into the step, so both ask here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.step_kind import StepKind
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import KvHistory, LayoutRule


@dataclass(frozen=True, slots=True)
class StepChoice:
    """What ranks are told beside the rows."""

    form: AttentionForm = AttentionForm.ABSORBED
    storage: CpStorage = CpStorage.PASS_Q


def choose_step(model: CostModel, rule: LayoutRule, rows: Sequence[Rows]) -> StepChoice:
    """The fastest way for one step's rows; single rows are absorbed and, alone, pass their queries."""
    many = [item for item in rows if item.rows > 1]
    if not many:
        return StepChoice()
    form = _predicted(model, rule, many).form
    if rule.history is not KvHistory.STRIPED:
        return StepChoice(form)
    # Pass-KV gathers the histories of all sequences of the step, those of single rows too.
    return StepChoice(form, _predicted(replace(model, forms=(form,)), rule, rows).storage)


def _predicted(model: CostModel, rule: LayoutRule, rows: Sequence[Rows]) -> StepChoice:
    load = Load.of(rows, num_ranks=model.num_ranks, top_k=model.top_k)
    prediction = model.predict(rule, load, kind=StepKind.PROMPTS)
    return StepChoice(prediction.form, prediction.storage)
