package disk

import "syscall"

// changeTime returns the time of the last change of a file's attributes.
func changeTime(s *syscall.Stat_t) syscall.Timespec { return s.Ctim }
