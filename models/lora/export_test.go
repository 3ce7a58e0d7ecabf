package lora

var GuessModel = guessModel
