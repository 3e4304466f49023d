"""Settings: what they are, where they lie, and the pages made from them."""
