package models

import (
	"strings"

	"github.com/gomflux/gomflux/textgen"
)

// LostQuote is lostQuote, for tests.
var LostQuote = lostQuote

// Encode returns the ids of a conversation.
func (m *LanguageModel) Encode(messages []textgen.Message) ([]int32, error) {
	return m.encode(messages, false)
}

// Spell returns the text of ids without those that begin or end thinking, which are no text.
func (m *LanguageModel) Spell(ids []int32) (string, error) {
	var text []byte
	for _, id := range ids {
		b, err := m.tokenizer.Bytes(id)
		if err != nil {
			return "", err
		}
		if s := string(b); s != "<think>" && s != "</think>" && s != "\x00" {
			text = append(text, b...)
		}
	}
	return strings.ToValidUTF8(string(text), "\ufffd"), nil
}
