//go:build !linux

package main

func systemMemory() uint64 { return 0 }
