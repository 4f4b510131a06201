"""Clients from two periodically shifting populations."""
