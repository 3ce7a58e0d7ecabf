// Package textfile decodes text files as editors of any system write them.
package textfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf16"
)

// Decode returns a text in UTF-8 without a byte order mark and with LF as line ends. With a byte order
// mark the text may be UTF-16. Other bytes are not checked.
func Decode(data []byte) ([]byte, error) {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		order = binary.BigEndian
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		order = binary.LittleEndian
	default:
		return bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n")), nil
	}
	if len(data)%2 > 0 {
		return nil, fmt.Errorf("is not valid UTF-16: expected an even number of bytes, found %d (save it as UTF-8)", len(data))
	}
	return bytes.ReplaceAll([]byte(UTF16(data[2:], order)), []byte("\r\n"), []byte("\n")), nil
}

// UTF16 decodes UTF-16 without a byte order mark. Half a character at the end is left out.
func UTF16(data []byte, order binary.ByteOrder) string {
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = order.Uint16(data[2*i:])
	}
	return string(utf16.Decode(units))
}
