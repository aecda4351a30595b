"""Phantom frames for pretraining, and the texts that they are trained with."""

import dataclasses

from tools.pretrain.corpus import caption, phantom_corpus

from mcpmix import phantom


def test_prompts_carry_one_and_three_phrases(tmp_path):
    corpus = phantom_corpus(tmp_path, 2, 32)
    captions, one, three = corpus.texts("A polyp.")
    mucosa, view, light = corpus.words[0][:3]
    assert captions == corpus.captions
    assert one[0] == f"A polyp. {mucosa} mucosa"
    assert three[0] == f"A polyp. {mucosa} mucosa, {view} view, {light} light"


def test_caption_in_full():
    words = ("pale", "octagonal", "bright", "dense", "sharp", "clean", "reddish", "raised", "small")
    assert caption(dataclasses.replace(phantom.render(0, 0, 0, 16), words=words)) == (
        "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense vessels, "
        "sharp focus, clean surface, showing a small reddish raised lesion"
    )
