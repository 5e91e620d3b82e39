"""One writer alone at a link, asked as transports ask for several."""

from splash_core.transport.link import Flow


def may_go(flow: Flow) -> bool:
    """True, once a chunk, when it may be sent."""
    return flow._link.first([flow]) is not None
