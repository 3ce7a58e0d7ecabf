package save

// What tests change.
var (
	MaxShard  = &maxShard
	RowsBytes = &rowsBytes
	FreeBytes = &freeBytes
)
