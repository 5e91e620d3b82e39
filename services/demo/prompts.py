"""What the demo asks. Each prompt has a greedy answer whose two best tokens are never nearly tied."""

QUESTION = "What is the capital of France?"

PROMPTS = (
    "A glacier forms where more snow falls in winter than melts in summer. Over many years the lower layers "
    "are pressed into ice, and under its own weight the ice begins to flow slowly downhill. It carries rocks "
    "with it, grinds the ground beneath, and leaves wide valleys behind when it melts. Explain to a child in "
    "a few sentences how a glacier shapes a valley.",
)
