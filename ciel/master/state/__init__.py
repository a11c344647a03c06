"""master/state"""
