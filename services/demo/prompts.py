"""What the demo asks: along each greedy answer the two best fp32 logits are never closer than 0.02."""

QUESTION = "What is the capital of France?"

PROMPTS = (
    "The printing press of Johannes Gutenberg used movable metal type, an oil-based ink and a press like "
    "those that made wine. Before it, books were copied by hand, and a single Bible took a scribe more "
    "than a year. Within fifty years, millions of books had been printed in Europe. Explain in a few "
    "sentences how the printing press changed the spread of knowledge.",
    "A lighthouse stands on rocks where ships could run aground. Its lamp is placed behind large lenses "
    "that bundle the light into beams, and the beams turn so that every lighthouse has its own rhythm of "
    "flashes. Sailors read the rhythm and know where they are. Explain in a few sentences how sailors "
    "used lighthouses to find their way.",
    "Bread rises because yeast eats sugar in the dough and gives off carbon dioxide. The gluten of the "
    "flour forms a net that holds the bubbles. In the oven the gas expands, the water turns to steam, and "
    "the crust becomes brown and crisp at the end. Explain in a few sentences what happens in a loaf of "
    "bread while it is baked.",
    "Why is the sky blue?",
)
