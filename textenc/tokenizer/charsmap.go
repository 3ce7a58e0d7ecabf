package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// charsmap is a Precompiled normalizer's table. It is SentencePiece's: the size
// of a trie, the trie, and replacements, to whose offsets the trie leads. Each
// ends in a zero byte.
//
// The trie is Darts-clone's. Of a unit of 32 bits, bits 10 to 30 are an offset,
// in units of 256 if bit 9 is set, which XOR the unit's own place and XOR the
// next byte is the place of the next unit. If bit 8 is set, the unit for byte 0
// is a value. Bits 0 to 7 are the byte that led here, in a value bit 31 is set.
type charsmap struct {
	data         []byte
	trie         []byte
	replacements []byte
}

// parseCharsmap decodes base64. A table with offsets outside of it is an error: the
// library does not check them.
func parseCharsmap(text string) (*charsmap, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	if len(data) < 4 {
		return nil, errors.New("cut off")
	}
	size := binary.LittleEndian.Uint32(data)
	if size == 0 || size%4 != 0 || uint64(size) > uint64(len(data)-4) {
		return nil, fmt.Errorf("the trie has %d bytes, the table %d", size, len(data))
	}
	c := &charsmap{data, data[4 : 4+size], data[4+size:]}
	if !utf8.Valid(c.replacements) {
		return nil, errors.New("a replacement is not UTF-8")
	}
	units := size / 4
	for i := range units {
		u := c.unit(i)
		if u>>31 != 0 && i != 0 {
			continue
		}
		next := i ^ offset(u)
		if next|0xff >= units {
			return nil, fmt.Errorf("unit %d leads out of the trie", i)
		}
		if u>>8&1 == 0 {
			continue
		}
		value := int64(c.value(next))
		if value > int64(len(c.replacements)) || value < int64(len(c.replacements)) && !utf8.RuneStart(c.replacements[value]) {
			return nil, fmt.Errorf("unit %d leads to no replacement, %d", i, value)
		}
	}
	return c, nil
}

func (c *charsmap) unit(i uint32) uint32  { return binary.LittleEndian.Uint32(c.trie[4*i:]) }
func (c *charsmap) value(i uint32) uint32 { return c.unit(i) &^ (1 << 31) }

func offset(unit uint32) uint32 { return unit >> 10 << (unit >> 9 & 1 * 8) }

// keeps reports whether text is printable ASCII, of which the table removes nothing.
func (c *charsmap) keeps(text string) bool {
	for i := range len(text) {
		b := uint32(text[i])
		if b <= ' ' || b > '~' {
			return false
		}
		place := offset(c.unit(0)) ^ b
		u := c.unit(place)
		if u&(1<<31|0xff) != b || u>>8&1 == 0 {
			continue
		}
		value := c.value(place ^ offset(u))
		if int64(value) >= int64(len(c.replacements)) || c.replacements[value] == 0 {
			return false
		}
	}
	return true
}
