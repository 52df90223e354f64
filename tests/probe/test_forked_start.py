"""A forked trial does not look through what its server holds whenever it collects garbage. Real TRL."""

from __future__ import annotations

import toys


def test_a_forked_trial_collects_its_own_garbage_only(warm, tmp_path):
    script = toys.write(
        tmp_path,
        f"""
        import gc
        print("FROZEN", gc.get_freeze_count(), "OWN", len(gc.get_objects()))
        import toy
        from trl import GRPOConfig
        toy.trainer(GRPOConfig({toys.settings()})).train()
    """,
    )
    run = warm.run(script)
    assert run.seen.died is None
    words = next(
        line for line in (run.folder / "log.txt").read_text().splitlines() if line.startswith("FROZEN")
    ).split()
    assert int(words[1]) > 10 * int(words[3])
