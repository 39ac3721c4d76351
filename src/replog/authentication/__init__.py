"""Ways to prove who one is: plugins for the hook `replog_authenticators`."""
