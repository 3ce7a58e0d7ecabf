package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

const pngSignature = "\x89PNG\r\n\x1a\n"

// pngHead is the length of the signature and the IHDR chunk, which is first.
const pngHead = 8 + 12 + 13

// pngChunks visits the chunks of a PNG file up to IEND. verify checks the chunk's
// checksum.
func pngChunks(data []byte, visit func(kind string, body []byte, verify func() error) error) error {
	if !bytes.HasPrefix(data, []byte(pngSignature)) {
		return errors.New("not a PNG file")
	}
	for at := len(pngSignature); ; {
		rest := data[at:]
		if len(rest) < 12 {
			return io.ErrUnexpectedEOF
		}
		size := uint64(binary.BigEndian.Uint32(rest))
		kind := string(rest[4:8])
		if size+12 > uint64(len(rest)) {
			return io.ErrUnexpectedEOF
		}
		body, sum := rest[8:8+size], binary.BigEndian.Uint32(rest[8+size:])
		verify := func() error {
			if crc32.ChecksumIEEE(rest[4:8+size]) != sum {
				return fmt.Errorf("chunk %q has a wrong checksum", kind)
			}
			return nil
		}
		if err := visit(kind, body, verify); err != nil {
			return err
		}
		if kind == "IEND" {
			return nil
		}
		at += int(size) + 12
	}
}

// pngText decodes a tEXt, zTXt or iTXt chunk if its keyword is one of wanted. For
// other chunks it returns an empty keyword.
func pngText(kind string, body []byte, wanted ...string) (keyword, text string, err error) {
	if kind != "tEXt" && kind != "zTXt" && kind != "iTXt" {
		return "", "", nil
	}
	key, rest, ok := bytes.Cut(body, []byte{0})
	if !ok {
		return "", "", nil
	}
	if keyword = string(key); !slices.Contains(wanted, keyword) {
		return "", "", nil
	}
	fail := func(format string, args ...any) (string, string, error) {
		return keyword, "", fmt.Errorf("%s chunk %q: %w", kind, keyword, fmt.Errorf(format, args...))
	}
	compressed := false
	switch kind {
	case "zTXt":
		if len(rest) < 1 || rest[0] != 0 {
			return fail("unknown compression method")
		}
		rest, compressed = rest[1:], true
	case "iTXt":
		if len(rest) < 2 || rest[0] > 1 || rest[0] == 1 && rest[1] != 0 {
			return fail("unknown compression method")
		}
		compressed = rest[0] == 1
		_, rest, ok = bytes.Cut(rest[2:], []byte{0}) // after the language
		if ok {
			_, rest, ok = bytes.Cut(rest, []byte{0}) // after the translated keyword
		}
		if !ok {
			return fail("%w", io.ErrUnexpectedEOF)
		}
	}
	if compressed {
		if rest, err = inflate(rest); err != nil {
			return fail("%w", err)
		}
	}
	switch {
	case len(rest) > maxText:
		return fail("longer than %d bytes", maxText)
	case utf8.Valid(rest): // stable-diffusion.cpp and others write UTF-8 to chunks that are Latin-1
		return keyword, string(rest), nil
	case kind == "iTXt":
		return fail("not UTF-8")
	}
	return keyword, latin1(rest), nil
}

// inflate decompresses at most maxText+1 bytes of zlib data.
func inflate(data []byte) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return io.ReadAll(io.LimitReader(z, maxText+1))
}

// appendPNGText appends a text chunk: tEXt if the text is Latin-1 and cannot be taken for UTF-8, else
// iTXt in UTF-8.
func appendPNGText(b []byte, keyword, text string) []byte {
	latin := make([]byte, 0, len(text))
	for _, r := range text {
		latin = append(latin, byte(r))
	}
	if body := string(latin); body == text || latin1(latin) == text && !utf8.Valid(latin) {
		return appendChunk(b, "tEXt", keyword+"\x00"+body)
	}
	return appendChunk(b, "iTXt", keyword+"\x00\x00\x00\x00\x00"+text)
}

func appendChunk(b []byte, kind, body string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	start := len(b)
	b = append(b, kind...)
	b = append(b, body...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[start:]))
}

// appendPNGSettings appends the chunks with the settings.
func appendPNGSettings(b []byte, s *Settings) ([]byte, error) {
	object, err := s.marshal("")
	if err != nil {
		return nil, err
	}
	b = appendPNGText(b, "parameters", s.parameters())
	return appendChunk(b, "iTXt", "gomflux\x00\x00\x00\x00\x00"+string(object)), nil
}

// pngKeys are the keywords of texts, first those of gomflux.
var pngKeys = append([]string{
	"gomflux", "parameters",
	"workflow", "invokeai_metadata", xmpKey, "use_vae_model", "clip_skip", "tiling", "use_upscale", "use_controlnet_model",
}, slices.Collect(maps.Keys(easyDiffusion.fields))...)

// xmpKey is the keyword of XMP.
const xmpKey = "XML:com.adobe.xmp"

// pngTexts collects the metadata texts of a PNG file.
func pngTexts(data []byte) (t texts, err error) {
	err = pngChunks(data, func(kind string, body []byte, verify func() error) error {
		if kind == "eXIf" && verify() == nil {
			t.addEXIF(body)
			return nil
		}
		keyword, text, err := pngText(kind, body, pngKeys...)
		if keyword != "" && err == nil {
			err = verify()
		}
		switch own := slices.Contains(pngKeys[:2], keyword); {
		case own && err != nil:
			return err
		case keyword == "" || err != nil: // as image viewers do, ignore those of others that are damaged
		case keyword == "gomflux" && t.settings == nil:
			t.settings = []byte(text)
		case keyword == "parameters" && t.parameters == "":
			t.parameters = strings.TrimRight(text, "\x00")
		case !own:
			t.addChunk(keyword, text)
		}
		return nil
	})
	t.xmp = t.chunks[xmpKey]
	return t, err
}
