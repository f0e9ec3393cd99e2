"""pagefacets inside other libraries: one import to switch."""
