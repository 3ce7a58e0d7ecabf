package picture

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/textfile"
)

// EXIF tags.
const (
	tagDescription = 0x010e
	tagMake        = 0x010f
	tagModel       = 0x0110
	tagOrientation = 0x0112
	tagExifIFD     = 0x8769
	tagUserComment = 0x9286
)

// exifPrefix is the beginning of a JPEG's EXIF segment.
const exifPrefix = "Exif\x00\x00"

// exif are the values of an EXIF block that this package reads.
type exif struct {
	orientation int // 1 to 8, see orient
	comment     string
	description string // of the image, UTF-8
	camera      []string
}

// parseEXIF reads an EXIF block, a TIFF structure that may have the prefix of JPEG's
// segments. Like image viewers, it ignores damaged parts.
func parseEXIF(data []byte) exif {
	e := exif{orientation: 1}
	data = bytes.TrimPrefix(data, []byte(exifPrefix))
	if len(data) < 8 {
		return e
	}
	var order binary.ByteOrder
	switch string(data[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return e
	}
	sub := uint32(0)
	entries(data, order, order.Uint32(data[4:]), func(tag, kind uint16, count uint32, value []byte) {
		switch {
		case tag == tagOrientation && kind == 3 && count == 1:
			if o := int(order.Uint16(value)); o >= 1 && o <= 8 {
				e.orientation = o
			}
		case tag == tagDescription && kind == 2 && len(value) <= maxText && utf8.Valid(value):
			e.description = string(bytes.TrimRight(value, "\x00 "))
		case (tag == tagMake || tag == tagModel) && kind == 2 && len(value) <= maxText:
			e.camera = append(e.camera, string(bytes.TrimRight(value, "\x00 ")))
		case tag == tagExifIFD && kind == 4 && count == 1:
			sub = order.Uint32(value)
		}
	})
	if sub == 0 {
		return e
	}
	entries(data, order, sub, func(tag, kind uint16, count uint32, value []byte) {
		// type 7, undefined; some write 1 or 2, bytes or ASCII
		if tag == tagUserComment && (kind == 7 || kind == 1 || kind == 2) {
			e.comment = userComment(value, order)
		}
	})
	return e
}

// entries visits the entries of the directory at an offset. It skips those whose
// values are not within data.
func entries(data []byte, order binary.ByteOrder, offset uint32, visit func(tag, kind uint16, count uint32, value []byte)) {
	at := uint64(offset)
	if at+2 > uint64(len(data)) {
		return
	}
	n := uint64(order.Uint16(data[at:]))
	at += 2
	for ; n > 0 && at+12 <= uint64(len(data)); n, at = n-1, at+12 {
		e := data[at : at+12]
		count := order.Uint32(e[4:])
		kind := order.Uint16(e[2:])
		sizes := [...]uint64{1: 1, 2: 1, 3: 2, 4: 4, 7: 1}
		if int(kind) >= len(sizes) || sizes[kind] == 0 {
			continue
		}
		size := sizes[kind] * uint64(count)
		value := e[8:]
		if size > 4 {
			from := uint64(order.Uint32(value))
			if from+size > uint64(len(data)) {
				continue
			}
			value = data[from : from+size]
		} else {
			value = value[:size]
		}
		visit(order.Uint16(e), kind, count, value)
	}
}

// userComment decodes a comment that begins with its character code of 8 bytes.
// Programs write UTF-8 with any code for single bytes.
func userComment(value []byte, order binary.ByteOrder) string {
	if len(value) < 8 || len(value) > maxText {
		return ""
	}
	code, text := string(value[:8]), value[8:]
	switch code {
	case "UNICODE\x00":
		return utf16String(text, order)
	case "ASCII\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00":
	default:
		if strings.HasPrefix(code, "JIS\x00") || !utf8.Valid(value) {
			return ""
		}
		text = value // written without a code
	}
	text = bytes.TrimRight(text, "\x00 ")
	if utf8.Valid(text) {
		return string(text)
	}
	return latin1(text)
}

// utf16String decodes UTF-16. Programs use big endian, the byte order of the block
// or a byte order mark. Without a mark, the order counts in which the text
// contains "Steps:", as a parameters text does, or begins with "{", as JSON does.
func utf16String(text []byte, order binary.ByteOrder) string {
	switch {
	case bytes.HasPrefix(text, []byte{0xfe, 0xff}):
		return decodeUTF16(text[2:], binary.BigEndian)
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}):
		return decodeUTF16(text[2:], binary.LittleEndian)
	}
	for _, o := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
		if s := decodeUTF16(text, o); strings.Contains(s, "Steps:") || strings.HasPrefix(s, "{") {
			return s
		}
	}
	return decodeUTF16(text, order)
}

func decodeUTF16(text []byte, order binary.ByteOrder) string {
	return strings.TrimRight(textfile.UTF16(text, order), "\x00 ")
}

// latin1 decodes ISO 8859-1.
func latin1(text []byte) string {
	runes := make([]rune, len(text))
	for i, c := range text {
		runes[i] = rune(c)
	}
	return string(runes)
}

// appendEXIF appends a big-endian EXIF block with a user comment in UTF-16 and, if it is not "", a
// description of the image.
func appendEXIF(b []byte, description, comment string) []byte {
	const header, frame, entrySize = 8, 2 + 4, 12 // bytes: of the block, around the entries of a directory, of an entry
	units := utf16.Encode([]rune(comment))
	be := binary.BigEndian
	entry := func(tag, kind uint16, count, value int) {
		b = be.AppendUint16(b, tag)
		b = be.AppendUint16(b, kind)
		b = be.AppendUint32(b, uint32(count))
		b = be.AppendUint32(b, uint32(value))
	}
	entries, text := 1, 8+2*len(units)
	if description != "" {
		entries = 2
	}
	sub := header + frame + entries*entrySize
	end := sub + frame + entrySize + text // of the comment
	b = append(b, "MM\x00*"...)
	b = be.AppendUint32(b, header)
	b = be.AppendUint16(b, uint16(entries))
	if description != "" { // the tags are in order
		entry(tagDescription, 2, len(description)+1, end)
	}
	entry(tagExifIFD, 4, 1, sub)
	b = be.AppendUint32(b, 0) // no next directory
	b = be.AppendUint16(b, 1)
	entry(tagUserComment, 7, text, end-text)
	b = be.AppendUint32(b, 0)
	b = append(b, "UNICODE\x00"...)
	for _, u := range units {
		b = be.AppendUint16(b, u)
	}
	if description != "" {
		b = append(append(b, description...), 0)
	}
	return b
}
