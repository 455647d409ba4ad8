"""Black-box tests of LMSP services; `conftest` says how to run them."""
