package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
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
		f, err := elf.Open(path)
		if _, ok := errors.AsType[*elf.FormatError](err); ok || errors.Is(err, io.EOF) {
			return nil // not an ELF file
		}
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

// older compares versions made of numbers and points.
func older(a, b string) bool {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		return m - n
	}) < 0
}
