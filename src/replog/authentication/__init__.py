"""Authenticators: plugins for the hook `replog_authenticators`."""
