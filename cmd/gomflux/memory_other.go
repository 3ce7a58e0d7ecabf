//go:build !linux && !darwin

package main

func systemMemory() uint64 { return 0 }

func availableMemory() uint64 { return 0 }
