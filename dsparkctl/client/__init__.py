"""Rank 0's side of the contract, inside the engine's process (§4, §7.3 to §7.5, §10).

Everything here serves one function, `rounds.Rounds.run`: an engine step goes in, drafts come out,
or zeros and the reason why. Drafts can only change speed, so nothing here may stop the engine.
"""
