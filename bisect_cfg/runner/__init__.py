"""One machine: a plan in, a result out.

observe     from the traces of a run that is over to what was seen of it
verdict     what that means under the failure under study: the one judge
"""
