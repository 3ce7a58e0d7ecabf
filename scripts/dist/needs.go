package main

import (
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// needs finds the newest version of a kind of symbols, such as GLIBC for
// GLIBC_2.35, that an ELF file below dir requires; "" if no file requires any.
func needs(dir, kind string) (newest string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if is, err := isELF(path); err != nil || !is {
			return err
		}
		f, err := elf.Open(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		defer f.Close()
		libraries, err := f.DynamicVersionNeeds()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, l := range libraries {
			for _, v := range l.Needs {
				if version, ok := strings.CutPrefix(v.Dep, kind+"_"); ok && older(newest, version) {
					newest = version
				}
			}
		}
		return nil
	})
	return newest, err
}

func isELF(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, len(elf.ELFMAG))
	_, err = io.ReadFull(f, magic)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return false, nil
	}
	return string(magic) == elf.ELFMAG, err
}

// older compares versions made of numbers and points.
func older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if x != y {
			return x < y
		}
	}
	return len(as) < len(bs)
}
