"""Identifiers. Each is its own type, so that one can never be passed as another."""

from typing import NewType

RankId = NewType("RankId", int)
"""A rank's index inside its group, 0 … T-1."""

SeqId = NewType("SeqId", int)
"""One running sequence inside a group incarnation; small, never reused."""

PageId = NewType("PageId", int)
"""A logical page of KV history inside a group: `page_size` tokens over all layers."""

SlotId = NewType("SlotId", int)
"""A slot of a rank's arena: room for one page."""

StepId = NewType("StepId", int)
"""Steps of a group, counted from 1 within an incarnation."""

Epoch = NewType("Epoch", int)
"""A group's layout epoch: bumped by each executed switch."""

RequestId = NewType("RequestId", str)
"""The client-visible id of a request; stable across phases and retries."""

GroupId = NewType("GroupId", str)
"""A worker group, for example `prefill-0`."""

Incarnation = NewType("Incarnation", str)
"""One life of a group: changes only when the group restarts."""

LeaseId = NewType("LeaseId", str)
"""A decode group's promise of pages to one request."""
