"""The networks that the project trains itself."""

from tools.pretrain.blueprints import build_tokenizer, stored_tokenizer

TEXTS = ["pale mucosa, wide view", "red mucosa, dim light", "a polyp"]


def test_words_of_the_corpus_are_single_tokens():
    tokenizer = build_tokenizer(TEXTS)
    assert tokenizer.tokenize("red mucosa") == ["red</w>", "mucosa</w>"]


def test_other_words_fall_back_to_letters():
    tokenizer = build_tokenizer(TEXTS)
    assert "".join(tokenizer.tokenize("zebra")) == "zebra</w>"
    assert tokenizer.unk_token_id not in tokenizer.encode("zebra", add_special_tokens=False)


def test_a_stored_tokenizer_is_not_built_anew(tmp_path):
    first = stored_tokenizer(TEXTS, tmp_path / "tokenizer")
    again = stored_tokenizer(["quite other texts"], tmp_path / "tokenizer")
    assert again.get_vocab() == first.get_vocab()
    assert again.encode("red mucosa") == first.encode("red mucosa")
    assert "mucosa</w>" in first.get_vocab()
