package checkpoint

import (
	"fmt"
	"strings"
)

// Dtype is the element type of a tensor as a safetensors header spells it:
// F32, BF16, F8_E4M3 and so on.
type Dtype string

// The element types of an [Array].
const (
	F64  Dtype = "F64"
	F32  Dtype = "F32"
	F16  Dtype = "F16"
	BF16 Dtype = "BF16"
	I64  Dtype = "I64"
	I32  Dtype = "I32"
	I16  Dtype = "I16"
	I8   Dtype = "I8"
	U64  Dtype = "U64"
	U32  Dtype = "U32"
	U16  Dtype = "U16"
	U8   Dtype = "U8"
	Bool Dtype = "BOOL"
)

// The 8-bit floats of stored weights. [Checkpoint.Parts] reads them as F32.
const (
	F8E4M3 Dtype = "F8_E4M3"
	F8E5M2 Dtype = "F8_E5M2"
)

// dtypes has every element type of safetensors 0.8 with its size in bits, and the
// name in NumPy and PyTorch if an [Array] can have the type.
var dtypes = map[Dtype]struct {
	bits int
	long string
}{
	F64: {64, "float64"}, F32: {32, "float32"}, F16: {16, "float16"}, BF16: {16, "bfloat16"},
	I64: {64, "int64"}, I32: {32, "int32"}, I16: {16, "int16"}, I8: {8, "int8"},
	U64: {64, "uint64"}, U32: {32, "uint32"}, U16: {16, "uint16"}, U8: {8, "uint8"}, Bool: {8, "bool"},
	F8E4M3: {bits: 8}, F8E5M2: {bits: 8}, "F8_E8M0": {bits: 8}, "F8_E4M3FNUZ": {bits: 8}, "F8_E5M2FNUZ": {bits: 8},
	"F6_E2M3": {bits: 6}, "F6_E3M2": {bits: 6}, "F4": {bits: 4}, "C64": {bits: 64},
}

// Bits returns the size of an element in bits, 0 for an unknown type.
func (d Dtype) Bits() int { return dtypes[d].bits }

// Size returns the size of an element in whole bytes, 0 for types of less than a
// byte.
func (d Dtype) Size() int { return dtypes[d].bits / 8 }

// IsNumeric reports whether an [Array] can have the type.
func (d Dtype) IsNumeric() bool { return dtypes[d].long != "" }

// IsFloat reports whether d is a floating-point type that an [Array] can have.
func (d Dtype) IsFloat() bool { return d == F64 || d == F32 || d == F16 || d == BF16 }

// IsWeight reports whether models compute with the type without conversion: F32,
// F16 or BF16.
func (d Dtype) IsWeight() bool { return d == F32 || d == F16 || d == BF16 }

// Long returns the type's name in NumPy and PyTorch, such as bfloat16 for BF16.
func (d Dtype) Long() string {
	if long := dtypes[d].long; long != "" {
		return long
	}
	return strings.ToLower(string(d))
}

// ParseDtype parses the name of a type that an [Array] can have: F32, fp32 or
// float32, in upper or lower case.
func ParseDtype(name string) (Dtype, error) {
	lower := strings.ToLower(name)
	for d, t := range dtypes {
		if !d.IsNumeric() {
			continue
		}
		if lower == t.long || lower == strings.ToLower(string(d)) || d.IsFloat() && d != BF16 && lower == "fp"+string(d)[1:] {
			return d, nil
		}
	}
	return "", fmt.Errorf("unknown dtype %q (expected float32, bfloat16, int32 and so on)", name)
}
