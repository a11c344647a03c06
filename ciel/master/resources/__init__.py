"""master/resources"""
