"""One writer alone at a link, asked as transports ask for several."""

from splash_core.transport.link import LinkFlow


def may_go(flow: LinkFlow) -> bool:
    """True, once a chunk, when it may be sent."""
    return flow._link.first([flow]) is not None
