"""The SJF-BCO paper (section 7)."""
