"""Operations that all SQL engines share, named statements kept in files, and numbered migrations with checksums."""
