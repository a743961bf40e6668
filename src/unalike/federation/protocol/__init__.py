"""What coordinator and sites say to each other: signed envelopes, messages, and the federation file that all agree to."""
