"""Other systems on the same work: what this library's rounds are compared with."""
