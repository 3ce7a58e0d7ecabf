package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// Markers of JPEG.
const (
	markerSOI  = 0xd8
	markerEOI  = 0xd9
	markerSOS  = 0xda
	markerAPP1 = 0xe1
	markerCOM  = 0xfe
)

// maxSegment is the largest number of bytes of a segment after its length.
const maxSegment = 1<<16 - 1 - 2

// xmpPrefix is the beginning of a segment with XMP.
const xmpPrefix = "http://ns.adobe.com/xap/1.0/\x00"

// commentStart is the beginning of our comment, and of our description in EXIF. It distinguishes
// our comment from others before its last segment.
const commentStart = `{"gomflux":`

// jpegSegments visits the segments of a JPEG file up to the first scan.
func jpegSegments(data []byte, visit func(marker byte, body []byte)) error {
	if len(data) < 2 || data[0] != 0xff || data[1] != markerSOI {
		return errors.New("not a JPEG file")
	}
	for at := 2; ; {
		for at < len(data) && data[at] != 0xff { // skip garbage, as decoders do
			at++
		}
		for at < len(data) && data[at] == 0xff { // a marker may have fill bytes
			at++
		}
		if at >= len(data) {
			return io.ErrUnexpectedEOF
		}
		marker := data[at]
		at++
		switch {
		case marker == markerSOS || marker == markerEOI:
			return nil
		case marker == 0 || marker == 1 || marker >= 0xd0 && marker <= markerSOI: // without a length
			continue
		}
		if len(data)-at < 2 {
			return io.ErrUnexpectedEOF
		}
		size := int(binary.BigEndian.Uint16(data[at:]))
		if size < 2 {
			return errors.New("a segment has an invalid length")
		}
		if size > len(data)-at {
			return io.ErrUnexpectedEOF
		}
		visit(marker, data[at+2:at+size])
		at += size
	}
}

// appendJPEGSettings appends the segments with the settings: the parameters text as
// EXIF user comment, and the JSON as comments, all full except the last. A
// parameters text that is too long for an EXIF segment, which cannot be split, is
// left out.
func appendJPEGSettings(b []byte, s *Settings) ([]byte, error) {
	text, err := s.wrap("")
	if err != nil {
		return nil, err
	}
	if exif := appendEXIF([]byte(exifPrefix), "", s.parameters()); len(exif) <= maxSegment {
		b = appendSegment(b, markerAPP1, exif)
	}
	for ; len(text) >= maxSegment; text = text[maxSegment:] {
		b = appendSegment(b, markerCOM, text[:maxSegment])
	}
	return appendSegment(b, markerCOM, append(text, '\n')), nil
}

func appendSegment(b []byte, marker byte, body []byte) []byte {
	b = append(b, 0xff, marker)
	b = binary.BigEndian.AppendUint16(b, uint16(2+len(body)))
	return append(b, body...)
}

// jpegTexts collects the metadata texts of a JPEG file.
func jpegTexts(data []byte) (t texts, err error) {
	var comment []byte
	more := false // the comment continues in the next segment
	err = jpegSegments(data, func(marker byte, body []byte) {
		switch {
		case marker == markerAPP1 && bytes.HasPrefix(body, []byte(exifPrefix)):
			t.addEXIF(body)
		case marker == markerAPP1 && bytes.HasPrefix(body, []byte(xmpPrefix)):
			t.xmp = string(body[len(xmpPrefix):])
		case marker == markerCOM && (more || comment == nil && bytes.HasPrefix(body, []byte(commentStart))):
			comment = append(comment, body...)
			more = len(body) == maxSegment && len(comment) <= maxText
		case marker == markerCOM && t.parameters == "": // of stable-diffusion.cpp
			t.parameters = strings.ToValidUTF8(strings.TrimRight(string(body), "\x00"), "")
		}
	})
	if err != nil || comment == nil {
		return t, err
	}
	members, err := parseObject(comment)
	if err != nil {
		return t, err
	}
	t.settings = members["gomflux"]
	return t, nil
}
