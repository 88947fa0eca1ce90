"""RFC 6962 trees in the shape of C2SP tlog-tiles: hashes, proofs, tiles, entry bundles."""
