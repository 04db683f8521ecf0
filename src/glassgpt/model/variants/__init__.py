"""GPT-2's relatives: each module is one change of attention, with its paper, and can be deleted by itself."""
