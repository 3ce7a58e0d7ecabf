package picture

import (
	"encoding/binary"
	"errors"
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
		if kind == "EXIF" && t.comment == "" {
			_, t.comment = parseEXIF(body)
		}
	})
	return t, err
}
