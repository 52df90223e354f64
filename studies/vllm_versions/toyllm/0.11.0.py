"""A stand-in for an engine that generates: its own loop over a transformers model, with its own masks."""

import torch

__version__ = "0.11.0"


def mask_of(known, steps):
    """Which places the next word may look at: the prompt's, and one for each word that was made."""
    made = torch.ones(known.shape[0], steps, dtype=known.dtype, device=known.device)
    return torch.cat([known, made], dim=1)


def places_of(mask, count, prefill):
    """The places of the last words, for the rotary table; of a prompt that fills a cache with that of the next word."""
    places = mask.cumsum(-1).sub(1).clamp(min=0)[:, -count:]
    return torch.cat([places, places[:, -1:] + 1], dim=1) if prefill else places


@torch.no_grad()
def generate(model, input_ids, attention_mask, generation_config, cached=True, **unused):
    """Sample as `model.generate` does, one word at a time."""
    words, past, done = input_ids, None, torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    for step in range(generation_config.max_new_tokens):
        mask = mask_of(attention_mask, step)
        inputs = words[:, -1:] if cached and past is not None else words
        places = places_of(mask, inputs.shape[1], prefill=cached and past is None)
        out = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=places,
            past_key_values=past,
            use_cache=cached,
        )
        past = out.past_key_values if cached else None
        chances = (out.logits[:, -1].float() / generation_config.temperature).softmax(-1)
        word = torch.multinomial(chances, 1).squeeze(1).masked_fill(done, generation_config.pad_token_id)
        words = torch.cat([words, word[:, None]], dim=1)
        done = done | (word == generation_config.eos_token_id)
        if done.all():
            break
    return words
