"""worker/state"""
