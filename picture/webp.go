package picture

import (
	"encoding/binary"
	"errors"
	"image"
	"io"
)

// webpChunks visits the chunks of a WebP file, a RIFF container.
func webpChunks(data []byte, visit func(kind string, body []byte)) error {
	if sniff(data) != WebP {
		return errors.New("not a WebP file")
	}
	size := uint64(binary.LittleEndian.Uint32(data[4:]))
	if size+8 > uint64(len(data)) || size < 4 {
		return io.ErrUnexpectedEOF
	}
	rest := data[12 : 8+size]
	for len(rest) > 0 {
		if len(rest) < 8 {
			return io.ErrUnexpectedEOF
		}
		size := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if 8+size > uint64(len(rest)) {
			return io.ErrUnexpectedEOF
		}
		visit(string(rest[:4]), rest[8:8+size])
		rest = rest[min(8+size+size%2, uint64(len(rest))):]
	}
	return nil
}

// webpTexts collects the metadata texts of a WebP file.
func webpTexts(data []byte) (t texts, err error) {
	err = webpChunks(data, func(kind string, body []byte) {
		switch kind {
		case "EXIF":
			t.addEXIF(body)
		case "XMP ":
			t.xmp = string(body[:min(len(body), maxText)])
		}
	})
	return t, err
}

// webpFile returns a WebP file with the settings of its image unless they are nil, which are in
// EXIF: the JSON as the description of the image, the parameters text as the user comment.
func webpFile(img image.Image, s *Settings) ([]byte, error) {
	const hasAlpha, hasEXIF = 0x10, 0x08
	var description, comment string
	if s != nil {
		text, err := s.wrap("")
		if err != nil {
			return nil, err
		}
		description, comment = string(text), s.parameters()
	}
	data, alpha, err := encodeVP8L(img)
	if err != nil {
		return nil, err
	}
	chunks := []byte("WEBP")
	if s != nil {
		head := []byte{hasEXIF, 0, 0, 0}
		if alpha {
			head[0] |= hasAlpha
		}
		for _, side := range []int{img.Bounds().Dx(), img.Bounds().Dy()} {
			head = append(head, byte(side-1), byte((side-1)>>8), byte((side-1)>>16))
		}
		chunks = appendWebPChunk(chunks, "VP8X", head)
	}
	chunks = appendWebPChunk(chunks, "VP8L", data)
	if s != nil {
		chunks = appendWebPChunk(chunks, "EXIF", appendEXIF(nil, description, comment))
	}
	return appendWebPChunk(nil, "RIFF", chunks), nil
}

// appendWebPChunk appends a chunk, and a byte if its size is odd.
func appendWebPChunk(b []byte, kind string, body []byte) []byte {
	b = append(b, kind...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return append(b, make([]byte, len(body)%2)...)
}
