"""The apps whose jobs are disturbed; each writes into the ledger of $SHIGOTO_LEDGER."""
